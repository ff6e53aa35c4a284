// Attention on the cpu, fp32: FlashAttention-2 over tiles of keys and strips of 24 query rows (attention_cpu_micro.h).
//
// Forward. A task is a block of rows of one head; its rows' o, maximum and sum stay in scratch while tiles of keys pass by.
// Masks cost nothing away from a border: each strip walks only from the first key of its first row's document to its last
// row, and only tiles that hold such a border compare positions.
//
// Backward. A task is a tile of keys of one key/value head; its dk and dv stay in scratch while blocks of rows pass by, for
// all query heads of the group. dq of a row is a sum over tasks. They add to it in the order of their keys: a task waits, row
// block by row block, for the one before it. Threads that share a head run as a pipeline, one block of rows behind another;
// with several heads, tasks alternate between them and hardly ever wait. So no score is computed twice, no scratch grows
// with the sequence, and the sums are the same for any number of threads.
//
// A mask is a score of kMasked: far below the running maximum's start, so its exponential is exactly 0 in every case.
#include <atomic>
#include <cmath>
#include <mutex>
#include <numbers>
#include <thread>
#include <vector>

#include "ops/attention_backends.h"
#include "ops/attention_cpu_micro.h"

namespace untied {
namespace {

using namespace attention_cpu;

constexpr float kMasked = -2e30f;
constexpr float kNoMaximum = -1e30f;  // running maximum before any key
constexpr float kNoRow = 1e30f;       // log-sum-exp of a row that only fills a strip: P = 0

// Hands out pieces of the scratch. Run on nullptr, it measures.
class Carver {
 public:
  explicit Carver(std::byte* base) : base_(base) {}
  template <class T = float>
  T* take(dim_t count) {
    T* piece = reinterpret_cast<T*>(reinterpret_cast<std::uintptr_t>(base_) + static_cast<std::uintptr_t>(used_));
    used_ += round_up(count * static_cast<dim_t>(sizeof(T)), Arena::kAlignment);
    return piece;
  }
  dim_t used() const { return used_; }

 private:
  std::byte* base_;
  dim_t used_ = 0;
};

struct Rows {  // a matrix with contiguous rows
  float* data;
  dim_t stride;
  explicit Rows(const Tensor& t) : data(t.f32()), stride(t.stride(0)) {}
  float* operator[](dim_t row) const { return data + row * stride; }
};

// 24 query rows, or fewer at the end of the call.
struct Strip {
  dim_t first = 0, rows = 0;              // position in the sequence; number of rows
  dim_t first_start = 0, last_start = 0;  // where the documents of its first and last row begin
  dim_t last() const { return first + rows - 1; }
  // The keys of tile [begin, end) that some row attends, relative to the tile and widened to what the products divide.
  Range keys(Range tile) const {
    const Range attended = intersect(tile, {first_start, last() + 1});
    if (attended.empty()) return {};
    return {(attended.begin - tile.begin) / kKeysPerStep * kKeysPerStep,
            round_up(attended.end - tile.begin, kKeysPerStep)};
  }
  // Whether all rows attend all of these keys.
  bool attends_all(Range keys, dim_t tile_begin) const {
    return tile_begin + keys.begin >= last_start && tile_begin + keys.end <= first + 1;
  }
};

// The strips of rows [begin, end) of the sequence, and where the document of each row begins.
void make_strips(Strip* strips, dim_t* starts, Range rows, DocumentStarts documents) {
  dim_t start = document_start(documents, rows.begin), end = document_end(documents, rows.begin, rows.end);
  for (dim_t row = rows.begin; row < rows.end; ++row) {
    if (row == end) start = row, end = document_end(documents, row, rows.end);
    starts[row - rows.begin] = start;
  }
  for (dim_t row = rows.begin; row < rows.end; row += kStripRows, ++strips, starts += kStripRows) {
    const dim_t count = std::min(kStripRows, rows.end - row);
    *strips = {row, count, starts[0], starts[count - 1]};
  }
}

// Scores of keys that a row does not attend become kMasked.
void mask(float* st, const Strip& strip, const dim_t* starts, Range keys, dim_t tile_begin) {
  IntLanes first[3], last[3];
  for (dim_t r = 0; r < kStripRows; ++r) {
    const dim_t row = std::min(r, strip.rows - 1);
    first[r / kLanes][r % kLanes] = static_cast<int>(std::max(starts[row] - tile_begin, keys.begin));
    last[r / kLanes][r % kLanes] = static_cast<int>(std::min(strip.first + row - tile_begin, keys.end));
  }
  for (dim_t key = keys.begin; key < keys.end; ++key) {
    const IntLanes k = splat(static_cast<int>(key));
    for (int v = 0; v < 3; ++v) {
      float* const at = st + key * kStripRows + v * kLanes;
      store(at, ((k < first[v]) | (k > last[v])) ? splat(kMasked) : load(at));
    }
  }
}

// ---------------------------------------------------------------------------------------------------------------- forward

struct ForwardScratch {
  float *qt, *o, *maximum, *sum;  // of the block's rows: [strip][D][24], [row][panels * 16], [row], [row]
  float *k, *v;                   // a tile: rows, panels
  float *st, *correction;  // a strip: scores, then probabilities [key][24]; factor of what was summed before [24]
  Strip* strips;
  dim_t* starts;
  ForwardScratch(Carver& carver, dim_t D, AttentionTiles tiles)
      : qt(carver.take(tiles.rows * D)), o(carver.take(tiles.rows * round_up(D, kPanel))),
        maximum(carver.take(tiles.rows)), sum(carver.take(tiles.rows)), k(carver.take(tiles.keys * D)),
        v(carver.take(tiles.keys * round_up(D, kPanel))), st(carver.take(tiles.keys * kStripRows)),
        correction(carver.take(kStripRows)), strips(carver.take<Strip>(tiles.rows / kStripRows)),
        starts(carver.take<dim_t>(tiles.rows)) {}
};

// Adds a tile of keys to a strip's maximum, sum and o.
void forward_strip(const ForwardScratch& s, dim_t strip, Range keys, Range tile, dim_t D, dim_t tile_keys) {
  const dim_t width = round_up(D, kPanel), row0 = strip * kStripRows;
  float* const st = s.st;
  scores(st, s.k, s.qt + row0 * D, D, keys.begin, keys.end);
  if (!s.strips[strip].attends_all(keys, tile.begin)) mask(st, s.strips[strip], s.starts + row0, keys, tile.begin);

  Lanes before[3], maximum[3], correction[3], sum[3] = {};
  for (int v = 0; v < 3; ++v) before[v] = maximum[v] = load(s.maximum + row0 + v * kLanes);
  for (dim_t key = keys.begin; key < keys.end; ++key)
    for (int v = 0; v < 3; ++v) maximum[v] = larger(load(st + key * kStripRows + v * kLanes), maximum[v]);
  for (dim_t key = keys.begin; key < keys.end; ++key) {
    float* const at = st + key * kStripRows;
    Lanes p[3];
    for (int v = 0; v < 3; ++v) p[v] = load(at + v * kLanes) - maximum[v];
    exp2_or_zero(p);
    for (int v = 0; v < 3; ++v) sum[v] += p[v];
    for (int v = 0; v < 3; ++v) store(at + v * kLanes, p[v]);
  }
  for (int v = 0; v < 3; ++v) correction[v] = before[v] - maximum[v];
  exp2_or_zero(correction);
  for (int v = 0; v < 3; ++v) {
    const dim_t at = row0 + v * kLanes;
    store(s.correction + v * kLanes, correction[v]);
    store(s.maximum + at, maximum[v]);
    store(s.sum + at, load(s.sum + at) * correction[v] + sum[v]);
  }
  for (dim_t d = 0; d < width; d += kPanel)
    for (dim_t r = 0; r < kStripRows; r += 6)
      sum_over_keys<Into::kScaleAndAdd>(s.o + (row0 + r) * width + d, width, s.correction + r,
                                        st + keys.begin * kStripRows + r, s.v + d * tile_keys + keys.begin * kPanel,
                                        keys.size());
}

// Rows [block) of the call, of one head.
void forward_block(const ForwardScratch& s, const AttentionForwardCall& call, dim_t head, Range block,
                   AttentionTiles tiles) {
  const dim_t D = call.q_hRD.dim(2), width = round_up(D, kPanel), strips = ceil_div(block.size(), kStripRows);
  const Rows q(call.q_hRD.index(head)), o(call.o_hRD.index(head)), k(call.kv[head].k_SD), v(call.kv[head].v_SD);
  const Range rows{call.rows.first_row + block.begin, call.rows.first_row + block.end};

  make_strips(s.strips, s.starts, rows, call.rows.documents);
  for (dim_t i = 0; i < strips; ++i)  // scores in units of log 2, so that exp is 2^x
    transpose_strip(s.qt + i * kStripRows * D, q[block.begin + i * kStripRows], q.stride, s.strips[i].rows, D,
                    static_cast<float>(call.rows.scale * std::numbers::log2e));
  std::fill_n(s.maximum, strips * kStripRows, kNoMaximum);
  std::fill_n(s.sum, strips * kStripRows, 0.0f);
  std::fill_n(s.o, strips * kStripRows * width, 0.0f);

  for (dim_t begin = s.strips[0].first_start / tiles.keys * tiles.keys; begin < rows.end; begin += tiles.keys) {
    const Range tile{begin, std::min(begin + tiles.keys, rows.end)};
    pack_rows(s.k, k[begin], k.stride, tile.size(), round_up(tile.size(), kKeysPerStep), D);
    pack_panels(s.v, v[begin], v.stride, tile.size(), tiles.keys, D);
    for (dim_t i = 0; i < strips; ++i) {
      const Range keys = s.strips[i].keys(tile);
      if (!keys.empty()) forward_strip(s, i, keys, tile, D, tiles.keys);
    }
  }

  for (dim_t r = 0; r < block.size(); ++r) {
    const float* const from = s.o + r * width;
    float* const to = o[block.begin + r];
    const float factor = 1.0f / s.sum[r];
    for (dim_t d = 0; d < D; ++d) to[d] = from[d] * factor;
    const double log2_sum = s.maximum[r] + std::log2(static_cast<double>(s.sum[r]));
    call.lse_hR.f32()[head * call.lse_hR.stride(0) + block.begin + r] =
        static_cast<float>(log2_sum * std::numbers::ln2);
  }
}

// --------------------------------------------------------------------------------------------------------------- backward

struct BackwardScratch {
  float *k, *v, *k_panels, *dk, *dv;  // a tile of keys: rows, rows, panels, [key][width], [key][width]
  float *qt, *dot, *lse, *delta;      // a strip: [D][24], [D][24], [24], [24]
  float *q_panels, *do_panels, *dq;   // a block of rows: [strip][panel][24][16] twice, [row][width]
  float *p, *ds;                      // a block of rows by a tile of keys: [strip][key][24]
  Strip* strips;
  dim_t* starts;
  BackwardScratch(Carver& carver, dim_t D, AttentionTiles tiles) {
    const dim_t width = round_up(D, kPanel);
    for (float** rows : {&k, &v}) *rows = carver.take(tiles.keys * D);
    for (float** rows : {&k_panels, &dk, &dv}) *rows = carver.take(tiles.keys * width);
    for (float** strip : {&qt, &dot}) *strip = carver.take(kStripRows * D);
    for (float** per_row : {&lse, &delta}) *per_row = carver.take(kStripRows);
    for (float** block : {&q_panels, &do_panels, &dq}) *block = carver.take(tiles.rows * width);
    for (float** products : {&p, &ds}) *products = carver.take(tiles.rows * tiles.keys);
    strips = carver.take<Strip>(tiles.rows / kStripRows);
    starts = carver.take<dim_t>(tiles.rows);
  }
};

// Tasks 0, 1, 2, ..., each a run of steps, handed to threads in order. A task may wait until an earlier one is past a step.
// Earlier tasks never wait for later ones, so there is no deadlock, however few threads really run.
class OrderedTasks {
 public:
  OrderedTasks(dim_t count, int threads) : count_(count), running_(static_cast<std::size_t>(threads)) {}

  // The next task, or -1.
  dim_t take(int thread) {
    const std::lock_guard lock(mutex_);  // so that a task is either visible as running, or not yet taken, or over
    Running& mine = running_[static_cast<std::size_t>(thread)];
    mine.next_step.store(0, std::memory_order_release);
    const dim_t task = next_ < count_ ? next_++ : -1;
    mine.task.store(task, std::memory_order_release);
    return task;
  }
  void finish(int thread, dim_t step) {
    running_[static_cast<std::size_t>(thread)].next_step.store(step + 1, std::memory_order_release);
  }
  void wait_for(dim_t task, dim_t step) const {
    while (is_before(task, step)) std::this_thread::yield();
  }

 private:
  struct alignas(64) Running {
    std::atomic<dim_t> task{-1}, next_step{0};
  };
  bool is_before(dim_t task, dim_t step) const {
    for (const Running& other : running_)
      if (other.task.load(std::memory_order_acquire) == task)
        return other.next_step.load(std::memory_order_acquire) <= step;
    return false;  // the task was taken before the caller's own: it is over
  }
  const dim_t count_;
  std::mutex mutex_;
  dim_t next_ = 0;
  std::vector<Running> running_;
};

// One call's backward, cut into tasks.
class Backward {
 public:
  Backward(const AttentionBackwardCall& call, int threads)
      : call_(call), D_(call.q_hRD.dim(2)), width_(round_up(D_, kPanel)), R_(call.q_hRD.dim(1)),
        end_(call.rows.first_row + R_), tiles_(attention_tiles_cpu(D_, /*backward=*/true)),
        groups_(make_groups(call.dkv)),
        first_tile_(document_start(call.rows.documents, call.rows.first_row) / tiles_.keys),
        tasks_((ceil_div(end_, tiles_.keys) - first_tile_) * num_groups(), threads) {}

  void run(int thread) {
    Carver carver(call_.workspace + thread * attention_scratch_cpu(D_, /*backward=*/true));
    const BackwardScratch scratch(carver, D_, tiles_);
    for (dim_t task = tasks_.take(thread); task >= 0; task = tasks_.take(thread)) key_tile(scratch, thread, task);
  }

 private:
  using Heads = std::vector<dim_t>;  // query heads of one key/value head

  static std::vector<Heads> make_groups(std::span<const KeyValue> dkv) {
    std::vector<Heads> groups;
    for (dim_t head = 0; head < static_cast<dim_t>(dkv.size()); ++head) {
      const auto same = [&](const Heads& group) { return dkv[group[0]].k_SD.raw() == dkv[head].k_SD.raw(); };
      const auto group = std::find_if(groups.begin(), groups.end(), same);
      if (group == groups.end()) groups.push_back({head});
      else group->push_back(head);
    }
    return groups;
  }
  dim_t num_groups() const { return static_cast<dim_t>(groups_.size()); }

  // Neighbouring tasks are of different groups; a task waits for the one `num_groups()` before it.
  void key_tile(const BackwardScratch& s, int thread, dim_t task) {
    const Heads& heads = groups_[task % num_groups()];
    const dim_t begin = (first_tile_ + task / num_groups()) * tiles_.keys;
    const Range tile{begin, std::min(begin + tiles_.keys, end_)};
    const Rows k(call_.kv[heads[0]].k_SD), v(call_.kv[heads[0]].v_SD);
    pack_rows(s.k, k[begin], k.stride, tile.size(), tiles_.keys, D_);
    pack_rows(s.v, v[begin], v.stride, tile.size(), tiles_.keys, D_);
    pack_panels(s.k_panels, k[begin], k.stride, tile.size(), tiles_.keys, D_);
    std::fill_n(s.dk, tiles_.keys * width_, 0.0f);
    std::fill_n(s.dv, tiles_.keys * width_, 0.0f);

    // The rows that attend some key of the tile: up to the end of the document of its last key.
    const dim_t rows_begin = std::max(begin - call_.rows.first_row, dim_t{0});
    const dim_t rows_end = document_end(call_.rows.documents, tile.end - 1, end_) - call_.rows.first_row;
    const dim_t blocks = ceil_div(R_, tiles_.rows);
    for (std::size_t i = 0; i < heads.size(); ++i) {
      for (dim_t b = rows_begin / tiles_.rows; b * tiles_.rows < rows_end; ++b) {
        const Range block{b * tiles_.rows, std::min((b + 1) * tiles_.rows, R_)};
        row_block(s, thread, task, static_cast<dim_t>(i) * blocks + b, heads[i], block, tile);
      }
    }

    const Rows dk(call_.dkv[heads[0]].k_SD), dv(call_.dkv[heads[0]].v_SD);
    const float scale = static_cast<float>(call_.rows.scale);
    for (dim_t key = 0; key < tile.size(); ++key) {
      for (dim_t d = 0; d < D_; ++d) dk[begin + key][d] += scale * s.dk[key * width_ + d];
      for (dim_t d = 0; d < D_; ++d) dv[begin + key][d] += s.dv[key * width_ + d];
    }
  }

  // One block of rows of one head against the tile; the task's step number `step`.
  void row_block(const BackwardScratch& s, int thread, dim_t task, dim_t step, dim_t head, Range block, Range tile) {
    const Range rows{call_.rows.first_row + block.begin, call_.rows.first_row + block.end};
    const dim_t strips = ceil_div(block.size(), kStripRows);
    make_strips(s.strips, s.starts, rows, call_.rows.documents);

    Range used{0, strips};  // strips that attend a key of the tile are neighbours
    while (!used.empty() && s.strips[used.begin].keys(tile).empty()) ++used.begin;
    while (!used.empty() && s.strips[used.end - 1].keys(tile).empty()) --used.end;
    for (dim_t i = used.begin; i < used.end; ++i) strip_gradients(s, head, block.begin + i * kStripRows, i, tile);

    // The first tile of keys of these rows writes dq, those after it add, one after another.
    const bool first = s.strips[0].first_start >= tile.begin;
    if (!first) tasks_.wait_for(task - num_groups(), step);
    add_dq(s, head, block, first, used);
    tasks_.finish(thread, step);

    const dim_t st_stride = tiles_.keys * kStripRows, panel_stride = kStripRows * width_;
    for (dim_t key = 0; key < tiles_.keys; key += 6) {
      Range with_key = used;
      while (!with_key.empty() && s.strips[with_key.begin].keys(tile).end <= key) ++with_key.begin;
      while (!with_key.empty() && s.strips[with_key.end - 1].keys(tile).begin > key) --with_key.end;
      if (with_key.empty()) continue;
      const dim_t st = with_key.begin * st_stride + key * kStripRows;
      for (dim_t d = 0; d < width_; d += kPanel) {
        const dim_t panel = with_key.begin * panel_stride + d * kStripRows;
        sum_over_rows(s.dv + key * width_ + d, width_, s.p + st, st_stride, s.do_panels + panel, panel_stride,
                      with_key.size());
        sum_over_rows(s.dk + key * width_ + d, width_, s.ds + st, st_stride, s.q_panels + panel, panel_stride,
                      with_key.size());
      }
    }
  }

  // P, dS and dq of a strip, whose first row is row `row` of the call.
  void strip_gradients(const BackwardScratch& s, dim_t head, dim_t row, dim_t i, Range tile) {
    const Strip& strip = s.strips[i];
    const Rows q(call_.q_hRD.index(head)), d_o(call_.do_hRD.index(head)), o(call_.o_hRD.index(head));
    const float* const lse = call_.lse_hR.f32() + head * call_.lse_hR.stride(0) + row;
    transpose_strip(s.qt, q[row], q.stride, strip.rows, D_, static_cast<float>(call_.rows.scale * std::numbers::log2e));
    transpose_strip(s.dot, d_o[row], d_o.stride, strip.rows, D_, 1.0f);
    pack_panels(s.q_panels + i * kStripRows * width_, q[row], q.stride, strip.rows, kStripRows, D_);
    pack_panels(s.do_panels + i * kStripRows * width_, d_o[row], d_o.stride, strip.rows, kStripRows, D_);
    for (dim_t r = 0; r < kStripRows; ++r) {
      s.lse[r] = r < strip.rows ? static_cast<float>(lse[r] * std::numbers::log2e) : kNoRow;
      s.delta[r] = r < strip.rows ? dot(d_o[row + r], o[row + r]) : 0.0f;
    }

    const Range keys = strip.keys(tile);
    float* const p = s.p + i * tiles_.keys * kStripRows;
    float* const ds = s.ds + i * tiles_.keys * kStripRows;
    scores(p, s.k, s.qt, D_, keys.begin, keys.end);
    scores(ds, s.v, s.dot, D_, keys.begin, keys.end);
    if (!strip.attends_all(keys, tile.begin)) mask(p, strip, s.starts + i * kStripRows, keys, tile.begin);
    Lanes log_sum[3], delta[3];
    for (int v = 0; v < 3; ++v) log_sum[v] = load(s.lse + v * kLanes), delta[v] = load(s.delta + v * kLanes);
    for (dim_t key = keys.begin; key < keys.end; ++key) {
      const dim_t at = key * kStripRows;
      Lanes probability[3];
      for (int v = 0; v < 3; ++v) probability[v] = load(p + at + v * kLanes) - log_sum[v];
      exp2_or_zero(probability);
      for (int v = 0; v < 3; ++v) store(p + at + v * kLanes, probability[v]);
      for (int v = 0; v < 3; ++v) store(ds + at + v * kLanes, probability[v] * (load(ds + at + v * kLanes) - delta[v]));
    }
    for (dim_t d = 0; d < width_; d += kPanel)
      for (dim_t r = 0; r < kStripRows; r += 6)
        sum_over_keys<Into::kWrite>(s.dq + (i * kStripRows + r) * width_ + d, width_, nullptr,
                                    ds + keys.begin * kStripRows + r,
                                    s.k_panels + d * tiles_.keys + keys.begin * kPanel, keys.size());
  }

  void add_dq(const BackwardScratch& s, dim_t head, Range block, bool first, Range used) {
    const Rows dq(call_.dq_hRD.index(head));
    const float scale = static_cast<float>(call_.rows.scale);
    for (dim_t r = 0; r < block.size(); ++r) {
      float* const to = dq[block.begin + r];
      const float* const from = s.dq + r * width_;
      const bool has = used.begin <= r / kStripRows && r / kStripRows < used.end;
      if (first && !has) std::fill_n(to, D_, 0.0f);
      else if (first)
        for (dim_t d = 0; d < D_; ++d) to[d] = scale * from[d];
      else if (has)
        for (dim_t d = 0; d < D_; ++d) to[d] += scale * from[d];
    }
  }

  float dot(const float* a, const float* b) const {
    Lanes lanes = {};
    dim_t d = 0;
    for (; d + kLanes <= D_; d += kLanes) lanes += load(a + d) * load(b + d);
    float total = sum(lanes);
    for (; d < D_; ++d) total += a[d] * b[d];
    return total;
  }

  const AttentionBackwardCall& call_;
  const dim_t D_, width_, R_, end_;
  const AttentionTiles tiles_;
  const std::vector<Heads> groups_;
  const dim_t first_tile_;
  OrderedTasks tasks_;
};

}  // namespace

// Speed hardly depends on the sizes (rows 48 to 384, keys 120 to 360: within 5 %, S = 4096, D = 32 to 128), so they are small
// enough to leave the scratch of a thread near its L2 cache, and large enough to make packing and the ordered sum cheap:
// a tile of keys is packed once for `rows` rows in forward, a block of rows once for `keys` keys in backward.
AttentionTiles attention_tiles_cpu(dim_t head_dim, bool backward) {
  const dim_t shrink = head_dim <= 128 ? 1 : 2;
  return backward ? AttentionTiles{48, 240 / shrink} : AttentionTiles{384 / shrink, 120};
}

dim_t attention_scratch_cpu(dim_t head_dim, bool backward) {
  Carver carver(nullptr);
  if (backward) BackwardScratch(carver, head_dim, attention_tiles_cpu(head_dim, true));
  else ForwardScratch(carver, head_dim, attention_tiles_cpu(head_dim, false));
  return carver.used();
}

void attention_forward_cpu(Ctx& ctx, const AttentionForwardCall& call) {
  const dim_t h = call.q_hRD.dim(0), R = call.q_hRD.dim(1), D = call.q_hRD.dim(2);
  const AttentionTiles tiles = attention_tiles_cpu(D, /*backward=*/false);
  const int threads = ctx.device.threads();
  // Fewer rows a task when there would be too few tasks: rows do not see how they are grouped.
  const dim_t wanted = threads == 1 ? tiles.rows : round_up(ceil_div(R * h, 4 * threads), kStripRows);
  const dim_t rows = std::min(tiles.rows, wanted), blocks = ceil_div(R, rows);
  std::atomic<int> team{0};  // gives each thread its number; without OpenMP there is one
#pragma omp parallel num_threads(threads)
  {
    Carver carver(call.workspace + team++ * attention_scratch_cpu(D, /*backward=*/false));
    const ForwardScratch scratch(carver, D, tiles);
#pragma omp for schedule(dynamic, 1)
    for (dim_t task = 0; task < blocks * h; ++task) {  // the last rows are the most work, so they come first
      const dim_t begin = (blocks - 1 - task / h) * rows;
      forward_block(scratch, call, task % h, {begin, std::min(begin + rows, R)}, tiles);
    }
  }
}

void attention_backward_cpu(Ctx& ctx, const AttentionBackwardCall& call) {
  const int threads = ctx.device.threads();
  Backward backward(call, threads);
  std::atomic<int> team{0};
#pragma omp parallel num_threads(threads)
  backward.run(team++);
}

}  // namespace untied
