#include "comm/rendezvous.h"

#include <string_view>

namespace untied {
namespace {

bool same_elements(const Tensor& a, const Tensor& b) { return a.size() == b.size() && a.dtype() == b.dtype(); }

std::string elements(const Tensor& t) {
  return t.size() == 0 ? "nothing" : format("{} {}", t.size(), name_of(t.dtype()));
}

// What is wrong between the calls of all ranks; empty: nothing.
std::string find_mismatch(const std::vector<CollectiveCall>& calls) {
  const int size = static_cast<int>(calls.size());
  const CollectiveCall& first = calls[0];
  for (int r = 1; r < size; ++r) {
    const CollectiveCall& other = calls[r];
    if (std::string_view(first.op) != other.op || !same_elements(first.tensor, other.tensor) ||
        first.reduce != other.reduce || first.root != other.root)
      return format("the ranks' collectives do not match: rank 0 calls {}, rank {} calls {}", first.str(), r,
                    other.str());
  }
  if (first.send.empty()) return "";
  for (int from = 0; from < size; ++from)
    for (int to = 0; to < size; ++to) {
      const Tensor &sent = calls[from].send[to], &expected = calls[to].recv[from];
      if (sent.size() != expected.size() || (sent.size() > 0 && sent.dtype() != expected.dtype()))
        return format("all_to_all does not match: rank {} sends {} to rank {}, which expects {}", from, elements(sent),
                      to, elements(expected));
    }
  return "";
}

}  // namespace

std::string CollectiveCall::str() const {
  std::string text = op;
  if (tensor.defined()) text += " of " + elements(tensor);
  if (reduce == Reduce::kMax) text += " (max)";
  if (std::string_view(op) == "broadcast") text += format(" from rank {}", root);
  return text;
}

void Rendezvous::meet(int rank, const CollectiveCall& call) {
  std::unique_lock lock(mutex_);
  if (!failure_.empty()) throw_failure(call.op);
  calls_[rank] = call;
  const std::uint64_t round = round_;
  if (arrive()) {
    failure_ = find_mismatch(calls_);
    if (!failure_.empty()) {
      changed_.notify_all();
      throw_failure(call.op);
    }
    release();
    return;
  }
  // A round that is complete counts, even when somebody fails before this thread wakes: the others have begun to copy.
  changed_.wait(lock, [&] { return round_ != round || !failure_.empty(); });
  if (round_ == round) throw_failure(call.op);
}

void Rendezvous::release() {
  arrived_ = 0;
  ++round_;
  changed_.notify_all();
}

void Rendezvous::wait_for_all() {
  std::unique_lock lock(mutex_);
  const std::uint64_t round = round_;
  if (arrive()) release();
  else changed_.wait(lock, [&] { return round_ != round; });
}

void Rendezvous::fail(int rank, const std::string& cause) {
  std::lock_guard lock(mutex_);
  if (!failure_.empty()) return;
  failure_ = format("rank {} of {}: {}", rank, size(), cause);
  changed_.notify_all();
}

void Rendezvous::check(const char* op) {
  std::lock_guard lock(mutex_);
  if (!failure_.empty()) throw_failure(op);
}

void Rendezvous::throw_failure(const char* op) const { throw DeviceError("{} was given up; {}", op, failure_); }

}  // namespace untied
