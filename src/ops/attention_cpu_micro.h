// The inner loops of attention on the cpu: two small matrix products that keep their result in registers, exp, transposition.
//
// Query rows are taken in strips of 24 = 3 vectors, and a tile of scores is held with the rows side by side ("ST"): score of
// (key, row) at [key * 24 + row]. Then everything that is per row (maximum, sum, mask, exp) is plain vector arithmetic without
// a horizontal step, keys and values are used as they lie in memory, and no operand of a product is packed twice.
// A register tile is 12 vectors (24 rows x 4 keys, or 6 rows x 16 columns) of the 16 that AVX2 has.
//
// Measured on one Zen 3 core, operands in L1/L2, fp32 (D = 32, 64, 128): both products 83 to 97 GFLOP/s, that is 90 % of the
// core's two FMAs a cycle; Eigen's and OpenBLAS's general products reach 40 to 70 at these sizes. exp takes 1.7 ns a vector.
#pragma once

#include <cstring>

#include "base/size.h"

#if defined(__AVX__)
#include <immintrin.h>
#endif

namespace untied::attention_cpu {

// GCC's and clang's vector types: ordinary arithmetic, and the compiler splits them where the machine's are narrower.
inline constexpr int kLanes = 8;
typedef float Lanes __attribute__((vector_size(32), may_alias));
typedef float LanesInMemory __attribute__((vector_size(32), aligned(4), may_alias));  // at any address
typedef int IntLanes __attribute__((vector_size(32), may_alias));

inline constexpr dim_t kStripRows = 24;  // query rows of a strip: 3 vectors
inline constexpr dim_t kPanel = 16;  // columns of a panel: 2 vectors. Panels hold 16 columns of all rows, row by row
inline constexpr dim_t kKeysPerStep = 12;  // what both products divide: 4 and 6

#define UNTIED_INLINE inline __attribute__((always_inline))
#define UNTIED_KERNEL inline __attribute__((noinline))  // keeps its registers to itself, and its name in a profile

UNTIED_INLINE Lanes load(const float* p) { return *reinterpret_cast<const LanesInMemory*>(p); }
UNTIED_INLINE void store(float* p, Lanes v) { *reinterpret_cast<LanesInMemory*>(p) = v; }
UNTIED_INLINE Lanes splat(float x) { return Lanes{x, x, x, x, x, x, x, x}; }
UNTIED_INLINE IntLanes splat(int x) { return IntLanes{x, x, x, x, x, x, x, x}; }

// a > b ? a : b; b where either is not a number. (GCC 12 makes a compare and a blend of the plain expression.)
UNTIED_INLINE Lanes larger(Lanes a, Lanes b) {
#if defined(__AVX__)
  return reinterpret_cast<Lanes>(_mm256_max_ps(reinterpret_cast<__m256>(a), reinterpret_cast<__m256>(b)));
#else
  return a > b ? a : b;
#endif
}

// x = 2^x for x <= 127, of the 24 rows of a strip: exactly 0 below -126.5, exactly 1 at 0; relative error 1.7e-7. NaN stays.
// x = n + f with n the nearest integer; 2^f is a polynomial fitted for the least relative error on [-1/2, 1/2]. Adding
// 1.5 * 2^23 + 127 leaves n + 127 in the last bits of the sum, and a shift makes the float 2^n of them.
// Step by step for three vectors at once: a chain of 40 cycles leaves the units idle when they come one after another
// (1.7 against 2.4 ns a vector).
UNTIED_INLINE void exp2_or_zero(Lanes (&x)[3]) {
  const Lanes shifter = splat(12582912.0f + 127.0f);
  Lanes t[3], p[3];
#define UNTIED_EACH _Pragma("GCC unroll 3") for (int v = 0; v < 3; ++v)
  UNTIED_EACH x[v] = larger(splat(-127.0f), x[v]);
  UNTIED_EACH t[v] = x[v] + shifter;
  UNTIED_EACH x[v] = x[v] - (t[v] - shifter);
  UNTIED_EACH p[v] = splat(0.00132647272f) * x[v] + splat(0.00967151264f);
  UNTIED_EACH p[v] = p[v] * x[v] + splat(0.0555073374f);
  UNTIED_EACH p[v] = p[v] * x[v] + splat(0.240222421f);
  UNTIED_EACH p[v] = p[v] * x[v] + splat(0.693146978f);
  UNTIED_EACH p[v] = p[v] * x[v] + splat(1.0f);
  UNTIED_EACH x[v] = p[v] * reinterpret_cast<Lanes>(reinterpret_cast<IntLanes>(t[v]) << 23);
#undef UNTIED_EACH
}

UNTIED_INLINE float sum(Lanes v) {
  float total = 0;
  for (int i = 0; i < kLanes; ++i) total += v[i];
  return total;
}

// st[key][24] = sum over d of a_KD[key][d] bt[d][24], for keys [begin, end), both multiples of 4. a_KD has D floats a row.
UNTIED_KERNEL void scores(float* st, const float* a_KD, const float* bt, dim_t D, dim_t begin, dim_t end) {
  for (dim_t key = begin; key < end; key += 4) {
    const float* const a0 = a_KD + key * D;
    const float* const a1 = a0 + D;
    const float* const a2 = a1 + D;
    const float* const a3 = a2 + D;
    Lanes c[4][3] = {};
    for (dim_t d = 0; d < D; ++d) {
      const Lanes b[3] = {load(bt + d * kStripRows), load(bt + d * kStripRows + kLanes),
                          load(bt + d * kStripRows + 2 * kLanes)};
      const float a[4] = {a0[d], a1[d], a2[d], a3[d]};
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i)
#pragma GCC unroll 3
        for (int v = 0; v < 3; ++v) c[i][v] += splat(a[i]) * b[v];
    }
    for (int i = 0; i < 4; ++i)
      for (int v = 0; v < 3; ++v) store(st + (key + i) * kStripRows + v * kLanes, c[i][v]);
  }
}

// What becomes of the sum.
enum class Into { kWrite, kAdd, kScaleAndAdd };

// For i < 6: x = sum over j < outer, k < inner of a[j * a_outer + k * kInner + i * kAcross] b[j * b_outer + k * 16 + (0..15)],
// and c[i] = x, c[i] + x or scale[i] c[i] + x.  The sum itself starts from zero, in registers: that keeps the sum over many
// tiles accurate, because each tile is added as one number.
template <dim_t kAcross, dim_t kInner, Into kInto>
UNTIED_KERNEL void accumulate(float* c, dim_t c_stride, const float* scale, const float* a, dim_t a_outer,
                              const float* b, dim_t b_outer, dim_t outer, dim_t inner) {
  Lanes x[6][2] = {};
  for (dim_t j = 0; j < outer; ++j) {
    const float* aj = a + j * a_outer;
    const float* bj = b + j * b_outer;
    for (dim_t k = 0; k < inner; ++k, aj += kInner, bj += kPanel) {
      const Lanes b0 = load(bj), b1 = load(bj + kLanes);
#pragma GCC unroll 6
      for (int i = 0; i < 6; ++i) {
        const Lanes ai = splat(aj[i * kAcross]);
        x[i][0] += ai * b0;
        x[i][1] += ai * b1;
      }
    }
  }
#pragma GCC unroll 6
  for (int i = 0; i < 6; ++i) {
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) {
      float* const at = c + i * c_stride + v * kLanes;
      if constexpr (kInto == Into::kWrite) store(at, x[i][v]);
      if constexpr (kInto == Into::kAdd) store(at, load(at) + x[i][v]);
      if constexpr (kInto == Into::kScaleAndAdd) store(at, load(at) * splat(scale[i]) + x[i][v]);
    }
  }
}

// Six rows of a strip times the keys of a tile: c[row] (+)= sum over keys of st[key][row] panel[key].
template <Into kInto>
UNTIED_INLINE void sum_over_keys(float* c, dim_t c_stride, const float* scale, const float* st, const float* panel,
                                 dim_t keys) {
  accumulate<1, kStripRows, kInto>(c, c_stride, scale, st, 0, panel, 0, 1, keys);
}
// Six keys times the rows of several strips: c[key] += sum over strips and rows of st[strip][key][row] panel[strip][row].
UNTIED_INLINE void sum_over_rows(float* c, dim_t c_stride, const float* st, dim_t st_stride, const float* panel,
                                 dim_t panel_stride, dim_t strips) {
  accumulate<kStripRows, 1, Into::kAdd>(c, c_stride, nullptr, st, st_stride, panel, panel_stride, strips, kStripRows);
}

// dst[d][24] = scale * src[row][d]: one strip, transposed; rows from `rows` on become zero.
UNTIED_KERNEL void transpose_strip(float* dst, const float* src, dim_t stride, dim_t rows, dim_t D, float scale) {
  const Lanes factor = splat(scale);
  for (dim_t r = 0; r < kStripRows; r += kLanes) {
    dim_t d = 0;
    if (r + kLanes <= rows) {
      for (; d + kLanes <= D; d += kLanes) {
        Lanes x[8], y[8];
#pragma GCC unroll 8
        for (int i = 0; i < 8; ++i) x[i] = load(src + (r + i) * stride + d) * factor;
          // Pairs of rows, pairs of pairs, halves.
#pragma GCC unroll 4
        for (int i = 0; i < 8; i += 2) {
          y[i] = __builtin_shufflevector(x[i], x[i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
          y[i + 1] = __builtin_shufflevector(x[i], x[i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
        }
#pragma GCC unroll 2
        for (int i = 0; i < 8; i += 4) {
          x[i] = __builtin_shufflevector(y[i], y[i + 2], 0, 1, 8, 9, 4, 5, 12, 13);
          x[i + 1] = __builtin_shufflevector(y[i], y[i + 2], 2, 3, 10, 11, 6, 7, 14, 15);
          x[i + 2] = __builtin_shufflevector(y[i + 1], y[i + 3], 0, 1, 8, 9, 4, 5, 12, 13);
          x[i + 3] = __builtin_shufflevector(y[i + 1], y[i + 3], 2, 3, 10, 11, 6, 7, 14, 15);
        }
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
          store(dst + (d + i) * kStripRows + r, __builtin_shufflevector(x[i], x[i + 4], 0, 1, 2, 3, 8, 9, 10, 11));
          store(dst + (d + i + 4) * kStripRows + r,
                __builtin_shufflevector(x[i], x[i + 4], 4, 5, 6, 7, 12, 13, 14, 15));
        }
      }
    }
    for (; d < D; ++d)
      for (dim_t i = r; i < r + kLanes; ++i) dst[d * kStripRows + i] = i < rows ? scale * src[i * stride + d] : 0.0f;
  }
}

// panels[d / 16][row][d % 16] = src[row][d] for rows [0, rows), `padded` rows a panel; zero in the rest and beyond D.
UNTIED_KERNEL void pack_panels(float* panels, const float* src, dim_t stride, dim_t rows, dim_t padded, dim_t D) {
  for (dim_t d = 0; d < D; d += kPanel, panels += padded * kPanel) {
    const dim_t columns = D - d < kPanel ? D - d : kPanel;
    if (columns == kPanel) {
      for (dim_t r = 0; r < rows; ++r) {
        store(panels + r * kPanel, load(src + r * stride + d));
        store(panels + r * kPanel + kLanes, load(src + r * stride + d + kLanes));
      }
    } else {
      for (dim_t r = 0; r < rows; ++r)
        for (dim_t i = 0; i < kPanel; ++i) panels[r * kPanel + i] = i < columns ? src[r * stride + d + i] : 0.0f;
    }
    std::memset(panels + rows * kPanel, 0, static_cast<std::size_t>((padded - rows) * kPanel) * sizeof(float));
  }
}

// dst[row][d] = src[row][d], contiguous; zero for the rows from `rows` up to `padded`.
UNTIED_KERNEL void pack_rows(float* dst, const float* src, dim_t stride, dim_t rows, dim_t padded, dim_t D) {
  for (dim_t r = 0; r < rows; ++r)
    std::memcpy(dst + r * D, src + r * stride, static_cast<std::size_t>(D) * sizeof(float));
  std::memset(dst + rows * D, 0, static_cast<std::size_t>((padded - rows) * D) * sizeof(float));
}

}  // namespace untied::attention_cpu
