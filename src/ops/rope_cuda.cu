// RoPE angles on cuda. The phase is formed in turns and reduced to [-1/2, 1/2] in double, where it is exact to 2e-10 at position
// ten million. What is left, in half turns, fits a float to 3e-8; sincospi of it is exact to two units in the last place and,
// unlike sincos, needs no reduction of its own. fp64 work for one tile of angles, against many heads that use them.
// Sustained: 823 GB/s, bound by fp64 (H200, 64 Ki rows of 64 pairs): 41 us, once for all heads of a tile (`untied bench ops`).
#include <numbers>

#include "ops/kernel_cuda.cuh"
#include "ops/rope.h"

namespace untied::cuda {
namespace {

constexpr int kMostFrequencies = 256;  // of one launch: they travel with the kernel's arguments, of 4 KiB at most

struct Angles {
  Rows<float> cos, sin;
  const std::int32_t* positions;
  double turns[kMostFrequencies];  // of one position

  template <int N>
  __device__ void run(dim_t r, dim_t f) const {
    static_assert(N == 1);
    const double phase = positions[r] * turns[f];
    float s, c;
    sincospif(static_cast<float>(2 * (phase - rint(phase))), &s, &c);
    *sin.at(r, f) = s;
    *cos.at(r, f) = c;
  }
};

}  // namespace

void rope_angles(Ctx& ctx, const Tensor& cos_RF, const Tensor& sin_RF, const Tensor& positions_R,
                 const std::vector<double>& frequencies) {
  const dim_t F = cos_RF.dim(1);
  for (dim_t begin = 0; begin < F; begin += kMostFrequencies) {
    const Range columns{begin, std::min(begin + kMostFrequencies, F)};
    Angles angles{rows_of<float>(cos_RF.slice(1, columns)),
                  rows_of<float>(sin_RF.slice(1, columns)),
                  positions_R.as<std::int32_t>(),
                  {}};
    for (dim_t f = columns.begin; f < columns.end; ++f)
      angles.turns[f - begin] = frequencies[f] / (2 * std::numbers::pi);
    walk<1>(ctx, "rope_angles", cos_RF.dim(0), columns.size(), false, angles);
  }
}

}  // namespace untied::cuda
