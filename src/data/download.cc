#include "data/download.h"

#include "util/digest.h"
#include "util/error.h"

#ifdef STRATA_DOWNLOAD
#include <curl/curl.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#endif

namespace strata {

const std::vector<DownloadSource>& download_sources() {
  static const std::vector<DownloadSource> sources = {
      {"imdb", "https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz",
       "md5:7c2ac02c03563afcf9b574c7e56c153a"},
      {"cifar10", "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
       "sha256:c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"},
  };
  return sources;
}

#ifdef STRATA_DOWNLOAD
namespace {

int on_progress(void* callback, curl_off_t total, curl_off_t now, curl_off_t, curl_off_t) {
  (*static_cast<std::function<void(int64_t, int64_t)>*>(callback))(now, total);
  return 0;
}

// A file that grows by what curl receives, and what went wrong with it.
struct Received {
  int descriptor;
  int reason = 0;
  ~Received() { close(descriptor); }
};

size_t on_bytes(char* bytes, size_t, size_t count, void* to) {
  auto* received = static_cast<Received*>(to);
  for (size_t done = 0; done < count;) {
    const ssize_t written = write(received->descriptor, bytes + done, count - done);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      received->reason = errno;
      return 0;  // curl stops
    }
    done += static_cast<size_t>(written);
  }
  return count;
}

// One transfer that continues at the end of `part`. Returns false if the server cannot resume.
bool transfer(const DownloadSource& source, const fs::path& part, const DownloadProgress& progress) {
  const int64_t have = fs::exists(part) ? static_cast<int64_t>(fs::file_size(part)) : 0;
  Received received{open(part.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0666)};
  if (received.descriptor < 0) throw output_error("{}: could not write ({})", part.string(), std::strerror(errno));
  const std::unique_ptr<CURL, void (*)(CURL*)> curl(curl_easy_init(), curl_easy_cleanup);
  std::function<void(int64_t, int64_t)> report = [&](int64_t now, int64_t total) {
    progress(have + now, total > 0 ? have + total : 0);
  };
  std::string reason(CURL_ERROR_SIZE, '\0');
  curl_easy_setopt(curl.get(), CURLOPT_URL, source.url.c_str());
  curl_easy_setopt(curl.get(), CURLOPT_WRITEFUNCTION, on_bytes);
  curl_easy_setopt(curl.get(), CURLOPT_WRITEDATA, &received);
  curl_easy_setopt(curl.get(), CURLOPT_FOLLOWLOCATION, 1L);
  curl_easy_setopt(curl.get(), CURLOPT_FAILONERROR, 1L);
  curl_easy_setopt(curl.get(), CURLOPT_RESUME_FROM_LARGE, static_cast<curl_off_t>(have));
  curl_easy_setopt(curl.get(), CURLOPT_CONNECTTIMEOUT, 30L);
  curl_easy_setopt(curl.get(), CURLOPT_LOW_SPEED_LIMIT, 1L);  // a minute without a byte is an error
  curl_easy_setopt(curl.get(), CURLOPT_LOW_SPEED_TIME, 60L);
  curl_easy_setopt(curl.get(), CURLOPT_NOPROGRESS, 0L);
  curl_easy_setopt(curl.get(), CURLOPT_XFERINFOFUNCTION, on_progress);
  curl_easy_setopt(curl.get(), CURLOPT_XFERINFODATA, &report);
  curl_easy_setopt(curl.get(), CURLOPT_ERRORBUFFER, reason.data());
  const CURLcode code = curl_easy_perform(curl.get());
  long status = 0;
  curl_easy_getinfo(curl.get(), CURLINFO_RESPONSE_CODE, &status);
  constexpr long kNothingLeft = 416;
  if (code == CURLE_OK || status == kNothingLeft) return true;
  if (code == CURLE_RANGE_ERROR) return false;
  const char* words = reason[0] != '\0' ? reason.c_str() : curl_easy_strerror(code);
  if (received.reason != 0)
    throw output_error("{}: could not write ({}); what is there is kept, run the command again to resume",
                       part.string(), std::strerror(received.reason));
  if (fs::file_size(part) == 0) {
    fs::remove(part);
    throw data_error("could not download {}: {}", source.url, words);
  }
  throw data_error("{}: the download stopped ({}); the part received is kept in {}, run the command again to resume",
                   source.url, words, part.string());
}

std::string md5_of_file(const fs::path& path) {
  const std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)> context(EVP_MD_CTX_new(), EVP_MD_CTX_free);
  EVP_DigestInit_ex(context.get(), EVP_md5(), nullptr);
  const std::string bytes = read_raw_file(path);
  EVP_DigestUpdate(context.get(), bytes.data(), bytes.size());
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned size = 0;
  EVP_DigestFinal_ex(context.get(), digest, &size);
  std::string hex;
  for (unsigned i = 0; i < size; ++i) hex += fmt::format("{:02x}", digest[i]);
  return hex;
}

}  // namespace

bool can_download() { return true; }

void download(const DownloadSource& source, const fs::path& path, const DownloadProgress& progress) {
  const size_t colon = source.digest.find(':');
  const std::string kind = source.digest.substr(0, colon);
  if (kind != "none" && (colon == std::string::npos || (kind != "sha256" && kind != "md5"))) {
    throw usage_error("digest: expected sha256:HEX, md5:HEX or none, got {}", source.digest);
  }
  const fs::path part = path.string() + ".part";
  if (!transfer(source, part, progress)) {
    fs::remove(part);
    transfer(source, part, progress);
  }
  if (kind != "none") {
    std::string expected = source.digest.substr(colon + 1);
    std::transform(expected.begin(), expected.end(), expected.begin(), [](unsigned char c) { return std::tolower(c); });
    const std::string got = kind == "md5" ? md5_of_file(part) : sha256_of_file(part);
    if (got != expected) {
      fs::remove(part);
      throw data_error("{}: expected {} {}, got {}; the file was removed, run the command again or try another source",
                       source.url, kind, expected, got);
    }
  }
  std::error_code error;
  fs::rename(part, path, error);
  if (error) throw output_error("{}: could not move the download here ({})", path.string(), error.message());
}
#else
bool can_download() { return false; }
void download(const DownloadSource& source, const fs::path&, const DownloadProgress&) {
  throw data_error(
      "this build cannot download (built without libcurl or OpenSSL); download {} yourself and pass its folder with "
      "--data",
      source.url);
}
#endif

}  // namespace strata
