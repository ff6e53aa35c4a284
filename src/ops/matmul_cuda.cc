// Matrix product by cuBLASLt. Its matrices are column-major, and a row-major c is c^T to it: c^T = op(b)^T op(a)^T, so b goes
// first and nothing is transposed in memory.
//
// The algorithm is the library's first choice for a shape that stays within the planned workspace, kept from then on: no
// timing, so the same call computes the same bits in every run. Parts of sums meet in fp32 (never in the type of c).
#include <cublasLt.h>

#include <bit>
#include <map>
#include <memory>

#include "device/cuda/check.h"
#include "device/cuda/stream.h"
#include "ops/matmul.h"

namespace untied {
namespace {

void check_cublas(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw DeviceError("cuBLASLt {}: {}: {}", cublasLtGetVersion(), what, cublasLtGetStatusString(status));
}
#define CUBLAS_CHECK(call) check_cublas((call), #call)

template <class T, cublasStatus_t (*kDestroy)(T)>
struct Destroy {
  using pointer = T;
  void operator()(T handle) const { kDestroy(handle); }
};
using Description = std::unique_ptr<void, Destroy<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>>;
using MatrixLayout = std::unique_ptr<void, Destroy<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>>;
using Preference = std::unique_ptr<void, Destroy<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>>;

cudaDataType type_of(DType dtype) { return dtype == DType::kBF16 ? CUDA_R_16BF : CUDA_R_32F; }

// What an algorithm depends on.
struct Key {
  dim_t M, N, K, lda, ldb, ldc;
  DType in, out;
  bool transpose_a, transpose_b;
  std::uint32_t align_a, align_b, align_c;  // bytes
  auto operator<=>(const Key&) const = default;
};

// The largest power of two that divides the address; algorithms ask for up to 256 bytes.
std::uint32_t alignment_of(const Tensor& t) {
  return 1u << std::min(8, std::countr_zero(std::bit_cast<std::uintptr_t>(t.raw())));
}
// The distance between rows; a single row has none, and the library wants one that is legal.
dim_t leading(const Tensor& t) { return t.dim(0) > 1 ? t.stride(0) : t.dim(1); }

// A row-major [rows, columns] as the library sees it.
MatrixLayout layout_of(DType dtype, dim_t rows, dim_t columns, dim_t distance) {
  cublasLtMatrixLayout_t layout = nullptr;
  CUBLAS_CHECK(cublasLtMatrixLayoutCreate(&layout, type_of(dtype), static_cast<std::uint64_t>(columns),
                                          static_cast<std::uint64_t>(rows), distance));
  return MatrixLayout(layout);
}

struct Plan {
  Description product;
  MatrixLayout a, b, c;
  cublasLtMatmulAlgo_t algorithm;
};

class Library {
 public:
  Library() { CUBLAS_CHECK(cublasLtCreate(&handle_)); }
  Library(const Library&) = delete;
  ~Library() { cublasLtDestroy(handle_); }

  void run(cudaStream_t stream, const Key& key, const Tensor& c, const Tensor& a, const Tensor& b, float beta,
           const Tensor& workspace) {
    auto plan = plans_.find(key);
    if (plan == plans_.end()) plan = plans_.emplace(key, make_plan(key, workspace.bytes())).first;
    const Plan& p = plan->second;
    const float alpha = 1;
    CUBLAS_CHECK(cublasLtMatmul(handle_, p.product.get(), &alpha, b.raw(), p.b.get(), a.raw(), p.a.get(), &beta,
                                c.raw(), p.c.get(), c.raw(), p.c.get(), &p.algorithm, workspace.raw(),
                                static_cast<std::size_t>(workspace.bytes()), stream));
  }

 private:
  Plan make_plan(const Key& key, dim_t most_workspace) {
    Plan plan;
    cublasLtMatmulDesc_t product = nullptr;
    CUBLAS_CHECK(cublasLtMatmulDescCreate(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    plan.product.reset(product);
    const auto set = [&](cublasLtMatmulDescAttributes_t attribute, cublasOperation_t operation) {
      CUBLAS_CHECK(cublasLtMatmulDescSetAttribute(product, attribute, &operation, sizeof operation));
    };
    set(CUBLASLT_MATMUL_DESC_TRANSA, key.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_TRANSB, key.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
    plan.a = layout_of(key.in, key.transpose_a ? key.K : key.M, key.transpose_a ? key.M : key.K, key.lda);
    plan.b = layout_of(key.in, key.transpose_b ? key.N : key.K, key.transpose_b ? key.K : key.N, key.ldb);
    plan.c = layout_of(key.out, key.M, key.N, key.ldc);

    cublasLtMatmulPreference_t created = nullptr;
    CUBLAS_CHECK(cublasLtMatmulPreferenceCreate(&created));
    const Preference preference(created);
    const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
      CUBLAS_CHECK(cublasLtMatmulPreferenceSetAttribute(created, attribute, &value, sizeof value));
    };
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<std::uint64_t>(most_workspace));
    prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, std::uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, key.align_b);
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, key.align_a);
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, key.align_c);
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, key.align_c);

    cublasLtMatmulHeuristicResult_t best{};
    int found = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(handle_, product, plan.b.get(), plan.a.get(),
                                                                 plan.c.get(), plan.c.get(), created, 1, &best, &found);
    if (status != CUBLAS_STATUS_SUCCESS || found == 0 || best.state != CUBLAS_STATUS_SUCCESS)
      throw DeviceError("cuBLASLt {}: no algorithm for {} {} x {} x {} within {} bytes of workspace ({})",
                        cublasLtGetVersion(), name_of(key.in), key.M, key.N, key.K, most_workspace,
                        cublasLtGetStatusString(status));
    plan.algorithm = best.algo;
    return plan;
  }

  cublasLtHandle_t handle_ = nullptr;
  std::map<Key, Plan> plans_;
};

}  // namespace

namespace cuda {

void matmul(Ctx& ctx, const Tensor& c_MN, const Tensor& a, const Tensor& b, MatmulOptions options,
            const Tensor& workspace) {
  const auto [transpose_a, transpose_b, accumulate] = options;
  const Key key{.M = c_MN.dim(0),
                .N = c_MN.dim(1),
                .K = a.dim(transpose_a ? 0 : 1),
                .lda = leading(a),
                .ldb = leading(b),
                .ldc = leading(c_MN),
                .in = a.dtype(),
                .out = c_MN.dtype(),
                .transpose_a = transpose_a,
                .transpose_b = transpose_b,
                .align_a = alignment_of(a),
                .align_b = alignment_of(b),
                .align_c = alignment_of(c_MN)};
  if (key.K == 0) {  // the library refuses it
    if (accumulate == Accumulate::kWrite) ctx.device.zero(StreamKind::kCompute, c_MN);
    return;
  }
  const cudaStream_t stream = stream_of(ctx);
  cuda_device(ctx.device)
      .attached<Library>()
      .run(stream, key, c_MN, a, b, accumulate == Accumulate::kAdd ? 1.0f : 0.0f, workspace);
}

}  // namespace cuda
}  // namespace untied
