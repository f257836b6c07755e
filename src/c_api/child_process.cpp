// SPDX-License-Identifier: Apache-2.0
#include "src/c_api/child_process.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cinttypes>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

namespace nanhunt::c_api {
namespace {

constexpr std::size_t kMaxShared = std::size_t{1} << 30;
constexpr off_t kMaxFile = off_t{64} << 20;  // that is copied
constexpr unsigned kMemoryDevices = 1;  // major number of /dev/null, /dev/zero, /dev/urandom

// The parent's handlers are its own, and Ctrl-C is for it alone.
void block_signals() {
  sigset_t all;
  sigfillset(&all);
  for (int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS}) sigdelset(&all, fault);
  pthread_sigmask(SIG_SETMASK, &all, nullptr);
}

bool end_with(pid_t parent) { return prctl(PR_SET_PDEATHSIG, SIGKILL) == 0 && getppid() == parent; }

// Through a pipe: what lies past the end of a mapped file is then an error and no signal, and stays 0.
bool copy_pages(const char* from, char* to, std::size_t bytes) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return false;
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  bool copied = true;
  for (std::size_t at = 0; at < bytes && copied; at += page) {
    const ssize_t written = write(ends[1], from + at, page);
    copied = written <= 0 || read(ends[0], to + at, page) == written;
  }
  close(ends[0]);
  close(ends[1]);
  return copied;
}

struct Mapping {
  std::uintptr_t begin = 0, end = 0;
  int protection = PROT_NONE;
  std::size_t bytes() const { return end - begin; }
};

bool make_private(const Mapping& mapping) {
  void* const there = reinterpret_cast<void*>(mapping.begin);
  void* const own = mmap(nullptr, mapping.bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (own == MAP_FAILED) return false;
  if ((mapping.protection & PROT_READ) == 0 && mprotect(there, mapping.bytes(), PROT_READ) != 0) return false;
  return copy_pages(static_cast<const char*>(there), static_cast<char*>(own), mapping.bytes()) &&
         mprotect(own, mapping.bytes(), mapping.protection) == 0 &&
         mremap(own, mapping.bytes(), mapping.bytes(), MREMAP_MAYMOVE | MREMAP_FIXED, there) != MAP_FAILED;
}

// Memory of a device cannot be copied; a process that has a device is not forked.
bool is_of_device(std::string_view path) {
  return path.starts_with("/dev/") && !path.starts_with("/dev/shm/") && !path.starts_with("/dev/zero");
}

bool part_memory() {
  std::ifstream maps("/proc/self/maps");
  std::vector<Mapping> shared;
  std::size_t bytes = 0;
  for (std::string line; std::getline(maps, line);) {
    Mapping mapping;
    char rights[5] = {};
    int path = 0;
    if (std::sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR " %4s %*s %*s %*s %n", &mapping.begin, &mapping.end, rights,
                    &path) < 3) {
      return false;
    }
    const std::string_view named = std::string_view(line).substr(static_cast<std::size_t>(path));
    if (rights[1] != 'w' || rights[3] != 's' || is_of_device(named)) continue;
    mapping.protection = PROT_WRITE | (rights[0] == 'r' ? PROT_READ : 0) | (rights[2] == 'x' ? PROT_EXEC : 0);
    bytes += mapping.bytes();
    shared.push_back(mapping);
  }
  if (!maps.eof() || bytes > kMaxShared) return false;
  for (const Mapping& mapping : shared) {
    if (!make_private(mapping)) return false;
  }
  return true;
}

// A file of the child's own with the same contents; -1: there is none.
int copy_of(int file, off_t bytes) {
  const int copy = memfd_create("nanhunt", MFD_CLOEXEC);
  off_t at = 0;
  while (copy >= 0 && at < bytes) {
    const ssize_t some = sendfile(copy, file, &at, static_cast<std::size_t>(bytes - at));
    if (some > 0) continue;
    close(copy);
    return -1;
  }
  return copy;
}

bool part_file(int fd, int nothing) {
  struct stat about {};
  const int flags = fcntl(fd, F_GETFL), of_descriptor = fcntl(fd, F_GETFD);
  if (flags < 0 || fstat(fd, &about) != 0) return true;  // it is gone
  if (S_ISDIR(about.st_mode) || (S_ISCHR(about.st_mode) && major(about.st_rdev) == kMemoryDevices)) return true;
  int own = nothing;
  if (S_ISREG(about.st_mode) && (flags & O_ACCMODE) != O_WRONLY && fd != STDOUT_FILENO && fd != STDERR_FILENO) {
    const std::string path = "/proc/self/fd/" + std::to_string(fd);
    const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    const bool writes = (flags & O_ACCMODE) == O_RDWR && about.st_size <= kMaxFile;
    own = writes && file >= 0 ? copy_of(file, about.st_size) : file;
    if (own != file) close(file);
    if (own >= 0) lseek(own, lseek(fd, 0, SEEK_CUR), SEEK_SET);
    if (own >= 0 && writes) fcntl(own, F_SETFL, flags & O_APPEND);
    if (own < 0) own = nothing;  // whoever reads it sees its end
  }
  const bool parted = dup3(own, fd, (of_descriptor & FD_CLOEXEC) != 0 ? O_CLOEXEC : 0) >= 0;
  if (own != nothing) close(own);
  return parted;
}

bool part_files(int keep) {
  std::vector<int> open_ones;
  DIR* const folder = opendir("/proc/self/fd");
  if (folder == nullptr) return false;
  while (const dirent* entry = readdir(folder)) {
    const int fd = std::atoi(entry->d_name);
    if (entry->d_name[0] != '.' && fd != keep && fd != dirfd(folder)) open_ones.push_back(fd);
  }
  closedir(folder);
  const int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
  if (nothing < 0) return false;
  bool parted = true;
  for (const int fd : open_ones) parted = part_file(fd, nothing) && parted;
  close(nothing);
  return parted;
}

}  // namespace

bool part_from_parent(pid_t parent, int keep) noexcept {
  block_signals();
  return end_with(parent) && part_files(keep) && part_memory();
}

}  // namespace nanhunt::c_api
