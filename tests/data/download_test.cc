// Downloads from a local server that fails in the ways that servers do.
#include "data/download.h"

#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <optional>

#include "data/support.h"

namespace strata {
namespace {

// Runs tests/data/range_server.py for the lifetime of this object.
class Server {
 public:
  // Empty if it does not start, for example without python3.
  static std::unique_ptr<Server> start(const fs::path& folder, const fs::path& log) {
    int to[2], from[2];
    if (pipe(to) != 0 || pipe(from) != 0) return nullptr;
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, to[0], 0);
    posix_spawn_file_actions_adddup2(&actions, from[1], 1);
    for (const int end : {to[0], to[1], from[0], from[1]}) posix_spawn_file_actions_addclose(&actions, end);
    std::string words[] = {"python3", STRATA_TEST_DATA "/range_server.py", folder.string(), log.string()};
    char* arguments[] = {words[0].data(), words[1].data(), words[2].data(), words[3].data(), nullptr};
    auto server = std::unique_ptr<Server>(new Server);
    const int failed = posix_spawnp(&server->process_, "python3", &actions, nullptr, arguments, environ);
    posix_spawn_file_actions_destroy(&actions);
    close(to[0]);
    close(from[1]);
    server->input_ = to[1];
    if (failed != 0) server->process_ = -1;
    for (char byte = 0; read(from[0], &byte, 1) == 1 && byte != '\n';) server->port_ += byte;
    close(from[0]);
    return server->port_.empty() ? nullptr : std::move(server);
  }
  ~Server() {
    close(input_);  // tells it to stop
    if (process_ > 0) waitpid(process_, nullptr, 0);
  }
  std::string url(const std::string& path) const { return "http://127.0.0.1:" + port_ + path; }

 private:
  Server() = default;
  pid_t process_ = -1;
  int input_ = -1;
  std::string port_;
};

class Downloads : public ::testing::Test {
 protected:
  // One server for all: starting Python takes longer than any of the tests.
  static void SetUpTestSuite() {
    served = new TempFolder;
    fs::create_directory(served->path() / "files");
    content = new std::string;
    for (int i = 0; i < 300000; ++i) *content += static_cast<char>(int64_t{i} * i % 253);
    served->write("files/data.bin", *content);
    server = Server::start(served->path() / "files", log_path()).release();
  }
  static void TearDownTestSuite() {
    delete server;
    delete content;
    delete served;
  }
  void SetUp() override {
    if (!can_download()) GTEST_SKIP() << "this build has no downloads";
    if (server == nullptr) GTEST_SKIP() << "there is no python3 to run the server of this test";
    fs::remove(log_path());
  }

  static fs::path log_path() { return served->path() / "log"; }
  std::vector<std::string> requests() const {
    std::vector<std::string> lines;
    std::ifstream in(log_path());
    for (std::string line; std::getline(in, line);) lines.push_back(line);
    return lines;
  }
  fs::path target() const { return folder.path() / "data.bin"; }
  fs::path part() const { return folder.path() / "data.bin.part"; }

  // "" on success.
  std::string fetch(const std::string& path, const std::string& digest = kSha) {
    const std::string message = error_of(ExitCode::kData, [&] {
      download({"imdb", server->url(path), digest}, target(),
               [&](int64_t bytes, int64_t total) { last_bytes = bytes, last_total = total; });
    });
    return message == "no error" ? "" : message;
  }

  // By sha256sum and md5sum, over the bytes i * i mod 253 for i below 300,000.
  static constexpr const char* kSha = "sha256:5972c1f5bb83e0b75b385cbf376730abc53afb5ee1c7ca5694f6d13f6465ba5b";
  static constexpr const char* kMd5 = "md5:413e578a1ba94bff13195005ee580543";
  static inline TempFolder* served = nullptr;
  static inline std::string* content = nullptr;
  static inline Server* server = nullptr;
  const Environment no_proxy{"no_proxy", "*"};
  TempFolder folder;
  int64_t last_bytes = -1, last_total = -1;
};

TEST_F(Downloads, WholeFile) {
  EXPECT_EQ(fetch("/data.bin"), "");
  EXPECT_EQ(slurp(target()), *content);
  EXPECT_FALSE(fs::exists(part()));
  EXPECT_EQ(last_bytes, 300000);
  EXPECT_EQ(last_total, 300000);
  EXPECT_EQ(requests(), std::vector<std::string>{"/data.bin -"});
  EXPECT_EQ(fetch("/moved/data.bin", kMd5), "");  // replaces the existing file
  EXPECT_EQ(slurp(target()), *content);
}

TEST_F(Downloads, GoesOnWhereItWasCutOff) {
  EXPECT_SAYS(fetch("/cut/200000/data.bin"), "/cut/200000/data.bin: the download stopped (");
  EXPECT_FALSE(fs::exists(target()));
  EXPECT_EQ(slurp(part()), content->substr(0, 200000));
  last_bytes = last_total = -1;
  EXPECT_EQ(fetch("/cut/200000/data.bin"), "");
  EXPECT_EQ(slurp(target()), *content);
  EXPECT_FALSE(fs::exists(part()));
  EXPECT_EQ(requests(), (std::vector<std::string>{"/cut/200000/data.bin -", "/cut/200000/data.bin bytes=200000-"}));
  EXPECT_EQ(last_bytes, 300000);  // of the whole, not of what was left
  EXPECT_EQ(last_total, 300000);
}

TEST_F(Downloads, AFullDiskKeepsWhatFits) {
  const std::string message = error_on_full_disk(100000, [&] {
    download({"imdb", server->url("/data.bin"), kSha}, target(), [](int64_t, int64_t) {});
  });
  EXPECT_SAYS(message, "data.bin.part: could not write (File too large)");
  EXPECT_EQ(slurp(part()), content->substr(0, 100000));
  EXPECT_EQ(fetch("/data.bin"), "");
  EXPECT_EQ(slurp(target()), *content);
}

TEST_F(Downloads, TheMessageOfACutSaysHowToGoOn) {
  const std::string message = fetch("/cut/10/data.bin");
  EXPECT_SAYS(message, "the part received is kept in " + part().string());
  EXPECT_SAYS(message, "run the command again to resume");
}

TEST_F(Downloads, AServerThatCannotGoOnStartsAgain) {
  folder.write("data.bin.part", "not the beginning of it");
  EXPECT_EQ(fetch("/norange/data.bin"), "");
  EXPECT_EQ(slurp(target()), *content);
  EXPECT_EQ(requests(), (std::vector<std::string>{"/norange/data.bin bytes=23-", "/norange/data.bin -"}));
}

TEST_F(Downloads, APartThatIsWholeAlready) {
  folder.write("data.bin.part", *content);
  EXPECT_EQ(fetch("/data.bin"), "");
  EXPECT_EQ(slurp(target()), *content);
}

TEST_F(Downloads, WrongDigest) {
  const std::string message = fetch("/data.bin", "sha256:00ff");
  EXPECT_SAYS(message, std::string("expected sha256 00ff, got ") + (kSha + 7));
  EXPECT_SAYS(message, "the file was removed");
  EXPECT_FALSE(fs::exists(target()));
  EXPECT_FALSE(fs::exists(part()));
  folder.write("data.bin.part", "junk");  // a part of another file is detected as well
  EXPECT_SAYS(fetch("/data.bin"), "expected sha256");
  EXPECT_FALSE(fs::exists(part()));
  EXPECT_EQ(fetch("/data.bin", "none"), "");
}

TEST_F(Downloads, DigestsThatCannotBeRead) {
  for (const char* digest : {"", "sha256", "sha1:00", "0123"}) {
    EXPECT_SAYS(error_of(ExitCode::kUsage,
                         [&] {
                           download({"imdb", server->url("/data.bin"), digest}, target(), [](int64_t, int64_t) {});
                         }),
                "digest: expected sha256:HEX, md5:HEX or none");
  }
  EXPECT_TRUE(requests().empty());  // refused before anything is fetched
}

TEST_F(Downloads, NotThere) {
  const std::string message = fetch("/none.bin");
  EXPECT_SAYS(message, "/none.bin: ");
  EXPECT_SAYS(message, "404");
  EXPECT_FALSE(fs::exists(target()));
  std::error_code none;
  const auto size = fs::file_size(part(), none);
  EXPECT_TRUE(none || size == 0) << "the page of the error is no part of the file";
}

TEST_F(Downloads, NoServer) {
  const std::string gone = "http://127.0.0.1:1/data.bin";
  EXPECT_SAYS(error_of(ExitCode::kData,
                       [&] {
                         download({"imdb", gone, "none"}, target(), [](int64_t, int64_t) {});
                       }),
              "could not download ");
  EXPECT_FALSE(fs::exists(target()));
}

TEST_F(Downloads, NoPlaceForIt) {
  EXPECT_SAYS(
      error_of(
          ExitCode::kOutput,
          [&] {
            download({"imdb", server->url("/data.bin"), "none"}, folder.path() / "none/x", [](int64_t, int64_t) {});
          }),
      "could not write");
}

TEST(Sources, AreKnownTasksWithDigests) {
  for (const DownloadSource& source : download_sources()) {
    EXPECT_EQ(source.url.substr(0, 8), "https://") << source.task;
    const size_t colon = source.digest.find(':');
    EXPECT_EQ(source.digest.size() - colon - 1, source.digest.substr(0, colon) == "md5" ? 32U : 64U) << source.task;
  }
  EXPECT_EQ(download_sources().size(), 2U);
}

}  // namespace
}  // namespace strata
