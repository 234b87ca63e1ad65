#include "server/log_sink.h"

#include <string>

#include <fcntl.h>
#include <signal.h>
#include <spdlog/logger.h>
#include <unistd.h>

#include "gtest/gtest.h"

namespace kvbridge::server {
namespace {

class LogSinkTest : public ::testing::Test {
 protected:
  // Two of the system's pages. It says that there is room while a page has nothing in it, and adds a
  // line to the last one written only where the whole line fits.
  static constexpr int kPipe = 8192;

  LogSinkTest() {
    signal(SIGPIPE, SIG_IGN);
    EXPECT_EQ(pipe2(ends_, O_CLOEXEC), 0);
    EXPECT_EQ(fcntl(ends_[1], F_SETPIPE_SZ, kPipe), kPipe);
  }
  ~LogSinkTest() override {
    CloseReader();
    close(ends_[1]);
  }
  void CloseReader() {
    if (ends_[0] >= 0) close(std::exchange(ends_[0], -1));
  }
  void Say(LogSink* sink, const std::string& line) {
    sink->log({"log", spdlog::level::info, line});
  }
  std::unique_ptr<LogSink> NewSink(int fd) {
    auto sink = std::make_unique<LogSink>(fd);
    sink->set_pattern("%v");
    return sink;
  }
  // Whatever lies in the pipe.
  std::string Read() {
    std::string text(1 << 16, '\0');
    fcntl(ends_[0], F_SETFL, O_NONBLOCK);
    const ssize_t n = read(ends_[0], text.data(), text.size());
    text.resize(n > 0 ? static_cast<size_t>(n) : 0);
    return text;
  }
  int ends_[2];
};

TEST_F(LogSinkTest, LinesAreWrittenWhole) {
  const auto sink = NewSink(ends_[1]);
  Say(sink.get(), "one");
  Say(sink.get(), "two");
  EXPECT_EQ(Read(), "one\ntwo\n");
  EXPECT_EQ(sink->lost(), 0u);
}

TEST_F(LogSinkTest, AReaderThatDoesNotReadCostsLinesAndGetsTheNextOnes) {
  const auto sink = NewSink(ends_[1]);
  for (int i = 0; i < 100; ++i) Say(sink.get(), std::string(1000, 'x'));
  std::string whole;  // four lines in the first page, one in the second
  for (int i = 0; i < 5; ++i) whole += std::string(1000, 'x') + "\n";
  EXPECT_EQ(Read(), whole);
  EXPECT_EQ(sink->lost(), 95u);
  Say(sink.get(), "again");
  EXPECT_EQ(Read(), "again\n");
  EXPECT_EQ(sink->lost(), 95u);
}

TEST_F(LogSinkTest, ALineThatWasCutOffDoesNotRunIntoTheNext) {
  const auto sink = NewSink(ends_[1]);
  Say(sink.get(), std::string(9000, 'x'));
  EXPECT_EQ(sink->lost(), 1u);
  EXPECT_EQ(Read(), std::string(kPipe, 'x'));
  Say(sink.get(), "next");
  EXPECT_EQ(Read(), "\nnext\n");
}

TEST_F(LogSinkTest, AClosedPipeAndAFullDiskAreCounted) {
  const auto sink = NewSink(ends_[1]);
  CloseReader();
  Say(sink.get(), "nobody");
  EXPECT_EQ(sink->lost(), 1u);
  const int full = open("/dev/full", O_WRONLY | O_CLOEXEC);
  const auto disk = NewSink(full);
  Say(disk.get(), "no room");
  EXPECT_EQ(disk->lost(), 1u);
  close(full);
}

}  // namespace
}  // namespace kvbridge::server
