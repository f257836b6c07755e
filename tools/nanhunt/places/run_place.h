// SPDX-License-Identifier: Apache-2.0
// Where a run lies: a folder of this machine, or a URL that the Python package copies from and to.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "nanhunt/status.h"

namespace nanhunt::cli {

class PythonProgram;

// "s3://bucket/run".
bool is_url(std::string_view place);
// Without a password and what a query may hold; fit for a terminal.
std::string shown_url(std::string_view url);

struct Fetch {
  bool digests = false;                   // of ranks that have one, only that
  std::vector<std::uint32_t> ranks = {};  // of these alone; empty: of all
  bool quiet = false;                     // no word of progress, nor of files that could not be copied
};
// Copies a run, or a part of it, into this machine's cache, and gives its folder there. Says what could not be copied.
// kNotFound: there is no run, perhaps not yet.
Result<std::string> fetch_run(const std::string& url, const Fetch& what = {});

// What people call a run that is read here: of a folder that fetch_run() gave its URL, else itself.
std::string run_name(const std::string& folder);

// A folder in which a run is recorded while it is copied to its URL.
class Upload {
 public:
  static Result<Upload> begin(const std::string& url);
  Upload(Upload&&) noexcept;
  Upload& operator=(Upload&&) noexcept;
  ~Upload();

  const std::string& folder() const { return folder_; }
  // Waits until all of it is there; then the folder is gone. Failed: what is left, why, and how to go on.
  Status finish();

 private:
  Upload(std::string url, std::string folder, std::unique_ptr<PythonProgram> program);

  std::string url_, folder_;
  std::unique_ptr<PythonProgram> program_;
};

}  // namespace nanhunt::cli
