#include "core/base/file.h"

#include <fstream>
#include <string>

#include <sys/stat.h>

#include "gtest/gtest.h"

namespace kvbridge::base {
namespace {

namespace fs = std::filesystem;

class FileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "kvbridge-file-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    dir_ = pattern;
  }
  void TearDown() override { fs::remove_all(dir_); }

  void Write(const fs::path& path, absl::string_view text) {
    std::ofstream(path) << std::string(text);
  }
  std::string Read(const fs::path& path) {
    return ReadFile(path, 1 << 20).value_or("<unreadable>");
  }
  size_t EntriesIn(const fs::path& path) {
    return static_cast<size_t>(
        std::distance(fs::directory_iterator(path), fs::directory_iterator()));
  }

  fs::path dir_;
};

TEST_F(FileTest, MappedFileOutlivesItsName) {
  Write(dir_ / "a", "hello");
  auto file = MappedFile::Open(dir_ / "a");
  ASSERT_TRUE(file.ok());
  fs::remove(dir_ / "a");
  EXPECT_EQ(std::string(reinterpret_cast<const char*>((*file)->bytes().data()), (*file)->size()),
            "hello");
}

TEST_F(FileTest, OnlyRegularFilesAreMapped) {
  EXPECT_EQ(MappedFile::Open(dir_ / "none").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(MappedFile::Open(dir_).status().code(), absl::StatusCode::kInvalidArgument);
  ASSERT_EQ(mkfifo((dir_ / "fifo").c_str(), 0600), 0);
  EXPECT_EQ(MappedFile::Open(dir_ / "fifo").status().code(), absl::StatusCode::kInvalidArgument);
  Write(dir_ / "empty", "");
  auto empty = MappedFile::Open(dir_ / "empty");
  ASSERT_TRUE(empty.ok());
  EXPECT_EQ((*empty)->size(), 0u);
}

TEST_F(FileTest, AMapSurvivesAFileThatIsCutShortAndTellsOfIt) {
  Write(dir_ / "a", std::string(3 << 16, 'x'));
  const auto file = MappedFile::Open(dir_ / "a");
  ASSERT_TRUE(file.ok());
  EXPECT_TRUE((*file)->CheckUnchanged().ok());
  fs::resize_file(dir_ / "a", 0);
  EXPECT_EQ((*file)->bytes()[2 << 16], std::byte{0});
  EXPECT_EQ((*file)->CheckUnchanged().code(), absl::StatusCode::kDataLoss);
  Write(dir_ / "a", std::string(3 << 16, 'x'));
  EXPECT_EQ((*file)->CheckUnchanged().code(), absl::StatusCode::kDataLoss);
}

TEST_F(FileTest, AFileThatIsReplacedOrRemovedWasNotChanged) {
  Write(dir_ / "a", "old");
  const auto file = MappedFile::Open(dir_ / "a");
  ASSERT_TRUE(file.ok());
  ASSERT_TRUE(WriteFileAtomic(dir_ / "a", "new").ok());
  fs::remove(dir_ / "a");
  EXPECT_TRUE((*file)->CheckUnchanged().ok());
}

TEST_F(FileTest, ReadFileRefusesBeforeItAllocates) {
  Write(dir_ / "a", "hello");
  EXPECT_EQ(ReadFile(dir_ / "a", 4).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(FileTest, AtomicDirAppearsWholeOrNotAtAll) {
  {
    auto dir = AtomicDir::Begin(dir_ / "out", false);
    ASSERT_TRUE(dir.ok());
    Write((*dir)->dir() / "f", "1");
    EXPECT_FALSE(fs::exists(dir_ / "out"));
  }
  EXPECT_EQ(EntriesIn(dir_), 0u) << "an abandoned folder leaves nothing behind";
  auto dir = AtomicDir::Begin(dir_ / "out", false);
  ASSERT_TRUE(dir.ok());
  Write((*dir)->dir() / "f", "1");
  ASSERT_TRUE((*dir)->Commit().ok());
  EXPECT_EQ(Read(dir_ / "out/f"), "1");
  EXPECT_EQ(EntriesIn(dir_), 1u);
}

TEST_F(FileTest, AtomicDirKeepsTheOldOneUnlessToldToOverwrite) {
  fs::create_directory(dir_ / "out");
  Write(dir_ / "out/f", "old");
  EXPECT_EQ(AtomicDir::Begin(dir_ / "out", false).status().code(),
            absl::StatusCode::kAlreadyExists);
  {
    auto interrupted = AtomicDir::Begin(dir_ / "out", true);
    ASSERT_TRUE(interrupted.ok());
    Write((*interrupted)->dir() / "f", "half");
  }
  EXPECT_EQ(Read(dir_ / "out/f"), "old");
  auto dir = AtomicDir::Begin(dir_ / "out", true);
  ASSERT_TRUE(dir.ok());
  Write((*dir)->dir() / "f", "new");
  ASSERT_TRUE((*dir)->Commit().ok());
  EXPECT_EQ(Read(dir_ / "out/f"), "new");
  EXPECT_EQ(EntriesIn(dir_), 1u);
}

TEST_F(FileTest, OverwritingRemovesNothingButWhatIsReplaced) {
  fs::create_directories(dir_ / "home/f");
  Write(dir_ / "letter", "dear");
  fs::create_directory(dir_ / "notes");
  Write(dir_ / "notes/thesis", "years");
  for (const char* target : {"home", "letter", "notes"}) {
    auto dir = AtomicDir::Begin(dir_ / target, true);
    ASSERT_TRUE(dir.ok());
    Write((*dir)->dir() / "f", "new");
    EXPECT_EQ((*dir)->Commit().code(), absl::StatusCode::kInvalidArgument) << target;
  }
  EXPECT_TRUE(fs::is_directory(dir_ / "home/f"));
  EXPECT_EQ(Read(dir_ / "letter"), "dear");
  EXPECT_EQ(Read(dir_ / "notes/thesis"), "years");
  EXPECT_EQ(EntriesIn(dir_), 3u);
}

TEST_F(FileTest, WriteFileAtomicReplacesOnlyFiles) {
  ASSERT_EQ(mkfifo((dir_ / "fifo").c_str(), 0600), 0);
  fs::create_directory(dir_ / "folder");
  fs::create_symlink(dir_ / "fifo", dir_ / "link");
  for (const char* path : {"fifo", "folder", "link"}) {
    EXPECT_EQ(WriteFileAtomic(dir_ / path, "1").code(), absl::StatusCode::kInvalidArgument) << path;
  }
  EXPECT_TRUE(fs::is_fifo(dir_ / "fifo"));
  EXPECT_TRUE(fs::is_symlink(dir_ / "link"));
  EXPECT_EQ(EntriesIn(dir_), 3u);
}

TEST_F(FileTest, ATargetThatAppearsMeanwhileIsNotReplaced) {
  auto dir = AtomicDir::Begin(dir_ / "out", false);
  ASSERT_TRUE(dir.ok());
  fs::create_directory(dir_ / "out");
  Write(dir_ / "out/f", "theirs");
  EXPECT_EQ((*dir)->Commit().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(Read(dir_ / "out/f"), "theirs");
}

TEST_F(FileTest, WriteFileAtomicReplacesAndLeavesNoTemporary) {
  ASSERT_TRUE(WriteFileAtomic(dir_ / "a", "1").ok());
  ASSERT_TRUE(WriteFileAtomic(dir_ / "a", "2").ok());
  EXPECT_EQ(Read(dir_ / "a"), "2");
  EXPECT_EQ(EntriesIn(dir_), 1u);
  EXPECT_EQ(WriteFileAtomic(dir_ / "none/a", "1").code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace kvbridge::base
