// A rank that fails, leaves, or calls something else must end every rank at once, with the cause.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "support/thread_world.h"

namespace untied::test {
namespace {

using namespace std::chrono_literals;
constexpr StreamKind kStream = StreamKind::kComm;

Tensor floats(std::vector<float>& v) { return Tensor(v.data(), DType::kF32, {static_cast<dim_t>(v.size())}); }

// Runs the world, and fails the test if it does not end soon: within a second on any machine that has the time, and no failure
// is noticed by a timeout. The limit leaves room for a machine that is busy with ten other things.
std::vector<std::string> run_quickly(int ranks, const std::function<void(Rank)>& body,
                                     const WorldOptions& options = {}) {
  const auto start = std::chrono::steady_clock::now();
  std::vector<std::string> errors = run_ranks(ranks, body, options);
  EXPECT_LT(std::chrono::steady_clock::now() - start, 10s);
  return errors;
}

void sum_once(Rank r) {
  std::vector<float> v{1, 2, 3};
  r.comm.all_reduce(r.ctx, kStream, floats(v));
}

void expect_contains(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "'" << text << "' does not contain '" << part << "'";
}

TEST(Failure, AnExceptionOnOneRankEndsAllWithItsCause) {
  for (int ranks : {2, 3, 8})
    for (int bad : {0, ranks - 1}) {
      const auto errors = run_quickly(ranks, [&](Rank r) {
        sum_once(r);
        if (r.rank() == bad) throw InputError("file x.jsonl, row 7: token 99 is not in the vocabulary");
        for (int i = 0; i < 1000; ++i) sum_once(r);
      });
      for (int r = 0; r < ranks; ++r) {
        expect_contains(errors[r], "row 7: token 99");
        if (r != bad) expect_contains(errors[r], format("all_reduce was given up; rank {} of {}: ", bad, ranks));
      }
    }
}

TEST(Failure, RanksThatAlreadyWaitAreWoken) {
  const auto errors = run_quickly(4, [&](Rank r) {
    if (r.rank() != 2) return r.comm.barrier(r.ctx);
    std::this_thread::sleep_for(100ms);
    r.comm.abort("out of memory");
  });
  for (int r : {0, 1, 3}) EXPECT_EQ(errors[r], "barrier was given up; rank 2 of 4: out of memory");
  EXPECT_EQ(errors[2], "");
}

TEST(Failure, LaterCallsThrowToo) {
  const auto errors = run_quickly(3, [&](Rank r) {
    if (r.rank() == 1) r.comm.abort("first cause");
    for (int i = 0; i < 3; ++i) {
      try {
        sum_once(r);
        throw InternalError("a collective went through");
      } catch (const DeviceError& error) {
        CHECK(std::string(error.what()) == "all_reduce was given up; rank 1 of 3: first cause", "{}", error.what());
        CHECK(error.code() == ExitCode::kDevice, "exit code {}", static_cast<int>(error.code()));
        r.comm.abort("a later cause");  // does not replace the first
      }
    }
  });
  EXPECT_EQ(failures(errors), "");
}

TEST(Failure, AnotherThreadMayAbort) {
  std::vector<std::unique_ptr<Communicator>> comms = make_thread_communicators(2);
  std::thread watchdog([&] {
    std::this_thread::sleep_for(50ms);
    comms[1]->abort("signal 15");
  });
  RankMemory memory(make_cpu_device({}), 4096, 4096);
  EXPECT_THROW(comms[0]->barrier(memory.ctx()), DeviceError);
  watchdog.join();
}

TEST(Failure, ARankThatJustGoesAwayIsNoticed) {
  for (bool throws : {false, true}) {
    const auto errors = run_quickly(3,
                                    [&](Rank r) {
                                      if (r.rank() == 0 && throws) throw RunError("nobody hears of this");
                                      if (r.rank() == 0) return;
                                      sum_once(r);
                                    },
                                    {.abort_on_error = false});
    for (int r : {1, 2})
      EXPECT_EQ(errors[r], "all_reduce was given up; rank 0 of 3: left the group while others still communicate");
  }
}

TEST(Failure, LeavingAfterTheLastCollectiveIsNoFailure) {
  for (int round = 0; round < 20; ++round) EXPECT_EQ(failures(run_ranks(4, sum_once)), "");
}

// ---- calls that do not match

struct Mismatch {
  const char* name;
  std::function<void(Rank)> odd;  // what rank 1 calls instead of all_reduce of 3 fp32
  const char* says;
};

class MismatchTest : public testing::TestWithParam<Mismatch> {};

TEST_P(MismatchTest, EndsEveryRankAndNamesBothCalls) {
  for (int ranks : {2, 4}) {
    const auto errors = run_quickly(ranks, [&](Rank r) {
      if (r.rank() == 1) GetParam().odd(r);
      else sum_once(r);
    });
    const std::string expected =
        format("given up; the ranks' collectives do not match: rank 0 calls all_reduce of 3 fp32, rank 1 calls {}",
               GetParam().says);
    for (const std::string& error : errors) expect_contains(error, expected);
  }
}

INSTANTIATE_TEST_SUITE_P(Calls, MismatchTest,
                         testing::Values(Mismatch{"Op", [](Rank r) { r.comm.barrier(r.ctx); }, "barrier"},
                                         Mismatch{"Broadcast",
                                                  [](Rank r) {
                                                    std::vector<float> v(3);
                                                    r.comm.broadcast(r.ctx, kStream, floats(v), 1);
                                                  },
                                                  "broadcast of 3 fp32 from rank 1"},
                                         Mismatch{"Count",
                                                  [](Rank r) {
                                                    std::vector<float> v(4);
                                                    r.comm.all_reduce(r.ctx, kStream, floats(v));
                                                  },
                                                  "all_reduce of 4 fp32"},
                                         Mismatch{"Type",
                                                  [](Rank r) {
                                                    std::vector<std::int32_t> v(3);
                                                    r.comm.all_reduce(r.ctx, kStream,
                                                                      Tensor(v.data(), DType::kI32, {3}));
                                                  },
                                                  "all_reduce of 3 int32"},
                                         Mismatch{"Reduction",
                                                  [](Rank r) {
                                                    std::vector<float> v(3);
                                                    r.comm.all_reduce(r.ctx, kStream, floats(v), Reduce::kMax);
                                                  },
                                                  "all_reduce of 3 fp32 (max)"}),
                         [](const auto& mismatch) { return std::string(mismatch.param.name); });

TEST(Failure, PiecesOfAnAllToAllMustMatch) {
  const auto errors = run_quickly(3, [](Rank r) {
    std::vector<float> out(12), in(12);
    std::vector<Tensor> send, recv;
    for (int p = 0; p < 3; ++p) {
      send.push_back(floats(out).rows(4 * p, 4 * p + (r.rank() == 2 && p == 0 ? 3 : 4)));
      recv.push_back(floats(in).rows(4 * p, 4 * (p + 1)));
    }
    r.comm.all_to_all(r.ctx, kStream, send, recv);
  });
  for (const std::string& error : errors)
    EXPECT_EQ(
        error,
        "all_to_all was given up; all_to_all does not match: rank 2 sends 3 fp32 to rank 0, which expects 4 fp32");
}

// ---- memory of a rank that unwinds must not be read by another: aborts at random moments, under the sanitizers

TEST(Failure, AbortsAtAnyMomentAreClean) {
  for (int round = 0; round < 16; ++round) {
    std::atomic<int> ended = 0;
    run_ranks(4, [&](Rank r) {
      struct Count {
        std::atomic<int>& n;
        ~Count() { ++n; }
      } count{ended};
      for (int i = 0;; ++i) {
        std::vector<float> v(3000, static_cast<float>(r.rank())),
            full(12000);  // freed as soon as the call ends or throws
        r.comm.all_reduce(r.ctx, kStream, floats(v));
        CHECK(v[0] == 6 && v[2999] == 6, "sum {}", v[0]);
        r.comm.all_gather(r.ctx, kStream, floats(full), floats(v));
        if (r.rank() == round % 4 && i == round) throw RunError("stop");
      }
    });
    EXPECT_EQ(ended, 4);
  }
}

TEST(Failure, AbortsFromOutsideAreClean) {
  for (int round = 0; round < 20; ++round) {
    std::vector<std::unique_ptr<Communicator>> comms = make_thread_communicators(3);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 3; ++rank)
      threads.emplace_back([&, rank] {
        RankMemory memory(make_cpu_device({}), 4096, 4096);
        auto forever = [&] {
          for (;;) {
            std::vector<float> v(3000, 1);
            comms[rank]->all_reduce(memory.ctx(), kStream, floats(v));
          }
        };
        EXPECT_THROW(forever(), DeviceError);
      });
    std::this_thread::sleep_for(std::chrono::microseconds(300 * round));
    comms[round % 3]->abort("stop");
    for (std::thread& t : threads) t.join();
  }
}

}  // namespace
}  // namespace untied::test
