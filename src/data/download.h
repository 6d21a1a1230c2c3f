// Official archives, downloaded once into the cache: with progress, resumed after an interruption, checked by digest.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "util/file.h"

namespace strata {

struct DownloadSource {
  const char* task;
  std::string url;
  std::string digest;  // "sha256:HEX" or "md5:HEX"; "none" skips the check
};
const std::vector<DownloadSource>& download_sources();

using DownloadProgress = std::function<void(int64_t bytes, int64_t total)>;  // total is 0 while unknown

// Downloads to `path`.part, which a later call resumes, and then renames it to `path`. Throws a data error.
void download(const DownloadSource& source, const fs::path& path, const DownloadProgress& progress);

bool can_download();  // whether this build has libcurl and OpenSSL

// Unpacks a set's archive into its folder in the cache: reviews become two tables, image batches stay unchanged.
void unpack_set(const DownloadSource& source, const fs::path& archive, const fs::path& folder);

}  // namespace strata
