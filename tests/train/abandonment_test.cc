#include "train/abandonment.h"

#include <gtest/gtest.h>

namespace untied {
namespace {

// The boundary at which a rank gives up, of the next `most`; 0: it does not.
int gives_up_after(Abandonment::Rank& rank, int most) {
  for (int n = 1; n <= most; ++n) {
    try {
      rank();
    } catch (const StepAbandoned&) {
      return n;
    }
  }
  return 0;
}

// One rank is five boundaries ahead when the other sees that time is up: both stop at the same boundary, the seventh.
TEST(Abandonment, RanksApartStopTogether) {
  bool up = false;
  Abandonment shared([&] { return up; });
  Abandonment::Rank behind(shared), ahead(shared);
  EXPECT_EQ(gives_up_after(ahead, 6), 0);
  EXPECT_EQ(gives_up_after(behind, 1), 0);
  up = true;
  EXPECT_EQ(gives_up_after(behind, 10), 6);  // the second to the seventh
  EXPECT_EQ(gives_up_after(ahead, 10), 1);   // the seventh
}

TEST(Abandonment, NobodyStopsInTime) {
  Abandonment shared([] { return false; });
  Abandonment::Rank rank(shared);
  EXPECT_EQ(gives_up_after(rank, 100), 0);
}

TEST(Abandonment, OneRankStopsAtTheNextBoundary) {
  Abandonment shared([] { return true; });
  Abandonment::Rank rank(shared);
  EXPECT_EQ(gives_up_after(rank, 10), 2);
}

}  // namespace
}  // namespace untied
