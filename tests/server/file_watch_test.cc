#include "server/file_watch.h"

#include <filesystem>
#include <fstream>

#include "gtest/gtest.h"
#include "tests/core/artifact/temp_dir.h"
#include "tests/support/notification.h"

namespace kvbridge::server {
namespace {

using test::Notification;

constexpr absl::Duration kSoon = absl::Milliseconds(1);

class FileWatchTest : public ::testing::Test {
 protected:
  FileWatchTest() { Write("file", "one"); }

  void Write(const std::string& name, const std::string& text) {
    std::ofstream(dir_ / name) << text;
  }

  Watched Of(const std::string& name, absl::Duration interval, std::function<void()> on_change) {
    return {.files = [path = (dir_ / name).string()] { return std::vector<std::string>{path}; },
            .interval = interval,
            .on_change = std::move(on_change)};
  }

  artifact::TempDir dir_;
};

TEST_F(FileWatchTest, AFileThatIsWrittenInPlaceIsTold) {
  Notification told;
  const FileWatch watch({Of("file", kSoon, [&] { told.Notify(); })});
  Write("file", "two");
  told.WaitForNotification();
}

TEST_F(FileWatchTest, AFolderThatIsSwappedByItsSymlinkIsTold) {
  std::filesystem::create_directory(dir_ / "v1");
  std::filesystem::create_directory(dir_ / "v2");
  Write("v1/file", "one");
  Write("v2/file", "two");
  std::filesystem::create_directory_symlink("v1", dir_ / "data");
  Notification told;
  const FileWatch watch({Of("data/file", kSoon, [&] { told.Notify(); })});
  std::filesystem::create_directory_symlink("v2", dir_ / "next");
  std::filesystem::rename(dir_ / "next", dir_ / "data");
  told.WaitForNotification();
}

TEST_F(FileWatchTest, AFileThatGoesAndComesBackIsToldTwice) {
  Notification gone;
  Notification back;
  const FileWatch watch({Of("file", kSoon, [&] {
    if (gone.HasBeenNotified()) return back.Notify();
    gone.Notify();
  })});
  std::filesystem::remove(dir_ / "file");
  gone.WaitForNotification();
  Write("file", "one");
  back.WaitForNotification();
}

// The kick that ends the test proves that a look took place and told nothing before it.
TEST_F(FileWatchTest, TheSameContentIsNoChangeUnlessAKickAsks) {
  Notification kicked;
  int told = 0;
  FileWatch watch({Of("file", absl::InfiniteDuration(), [&] {
    ++told;
    kicked.Notify();
  })});
  std::filesystem::last_write_time(dir_ / "file", std::filesystem::file_time_type::clock::now());
  watch.Kick();
  kicked.WaitForNotification();
  EXPECT_EQ(told, 1);
}

TEST_F(FileWatchTest, EachWatchHearsOfItsOwnFiles) {
  Write("other", "one");
  Notification told;
  bool wrong = false;
  const FileWatch watch(
      {Of("file", kSoon, [&] { wrong = true; }), Of("other", kSoon, [&] { told.Notify(); })});
  Write("other", "two");
  told.WaitForNotification();
  EXPECT_FALSE(wrong);
}

}  // namespace
}  // namespace kvbridge::server
