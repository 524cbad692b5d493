#include "framework/ir/file_io.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <system_error>

namespace plo {
namespace {

ErrorCode CodeOf(int error) {
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      return ErrorCode::kNotFound;
    case EISDIR:
    case EEXIST:
    case EINVAL:
    case ELOOP:
    case ENAMETOOLONG:
      return ErrorCode::kInvalidArgument;
    case EACCES:
    case EPERM:
    case EROFS:
      return ErrorCode::kFailedPrecondition;
    case ENOMEM:
      return ErrorCode::kOutOfMemory;
    default:
      return ErrorCode::kUnavailable;
  }
}

// 0 or an errno.
int ReadAll(int fd, std::string* content) {
  char buffer[1 << 16];
  while (true) {
    const ssize_t got = read(fd, buffer, sizeof(buffer));
    if (got == 0) return 0;
    if (got > 0) {
      content->append(buffer, static_cast<size_t>(got));
    } else if (errno != EINTR) {
      return errno;
    }
  }
}

// Opens, writes and closes; 0 or an errno.
int WriteTo(const std::string& path, int flags, std::string_view content) {
  const int fd = open(path.c_str(), O_WRONLY | O_CLOEXEC | flags, 0666);
  if (fd < 0) return errno;
  int error = 0;
  while (error == 0 && !content.empty()) {
    const ssize_t written = write(fd, content.data(), content.size());
    if (written >= 0) {
      content.remove_prefix(static_cast<size_t>(written));
    } else if (errno != EINTR) {
      error = errno;
    }
  }
  // Some file systems tell only here that the disk is full.
  if (close(fd) != 0 && error == 0) error = errno;
  return error;
}

// What lies at the path of an output.
struct Target {
  bool exists = false;
  bool regular = false;
  mode_t mode = 0;
  int error = 0;  // why it cannot be written, if that shows
};

Target Look(const std::string& path) {
  struct stat info {};
  Target target;
  if (lstat(path.c_str(), &info) != 0) return target;
  target.exists = true;
  target.regular = S_ISREG(info.st_mode);
  target.mode = info.st_mode & 07777;
  if (S_ISDIR(info.st_mode)) {
    target.error = EISDIR;
  } else if (faccessat(AT_FDCWD, path.c_str(), W_OK, AT_EACCESS) != 0) {
    // A link may point to what does not exist yet.
    target.error = S_ISLNK(info.st_mode) && errno == ENOENT ? 0 : errno;
  }
  return target;
}

// Writes a fresh file beside `path`; 0 or an errno.
int WriteBeside(const std::string& path, std::string_view content,
                std::string* temporary) {
  static std::atomic<unsigned> count{0};
  const size_t slash = path.rfind('/');
  const std::string folder =
      slash == std::string::npos ? "" : path.substr(0, slash + 1);
  int error = EEXIST;
  for (int attempt = 0; error == EEXIST && attempt < 100; ++attempt) {
    *temporary = StrCat(folder, ".plo_", getpid(), "_", count++, ".tmp");
    error = WriteTo(*temporary, O_CREAT | O_EXCL, content);
  }
  if (error != 0 && error != EEXIST) unlink(temporary->c_str());
  return error;
}

// A file may be writable where its folder takes no other.
bool FolderRefuses(int error) {
  return error == EACCES || error == EPERM || error == EROFS || error == EBUSY;
}

int Replace(const std::string& path, std::string_view content) {
  const Target target = Look(path);
  if (target.error != 0) return target.error;
  if (target.exists && !target.regular) {
    return WriteTo(path, O_CREAT | O_TRUNC, content);
  }
  std::string temporary;
  int error = WriteBeside(path, content, &temporary);
  if (error == 0) {
    if (target.exists) chmod(temporary.c_str(), target.mode);
    if (rename(temporary.c_str(), path.c_str()) == 0) return 0;
    error = errno;
    unlink(temporary.c_str());
  }
  if (target.exists && FolderRefuses(error)) {
    return WriteTo(path, O_TRUNC, content);
  }
  return error;
}

int Probe(const std::string& path) {
  const Target target = Look(path);
  if (target.error != 0) return target.error;
  if (target.exists && !target.regular) return 0;
  std::string temporary;
  const int error = WriteBeside(path, "", &temporary);
  if (error == 0) unlink(temporary.c_str());
  return target.exists && FolderRefuses(error) ? 0 : error;
}

}  // namespace

Error FileError(std::string_view what, const std::string& path, int error) {
  return Error(
      CodeOf(error),
      StrCat(what, " '", path, "': ", std::generic_category().message(error)));
}

std::string ReadFile(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) throw FileError("cannot read", path, errno);
  std::string content;
  const int error = ReadAll(fd, &content);
  close(fd);
  if (error != 0) throw FileError("cannot read", path, error);
  return content;
}

std::string ReadStdin() {
  std::string content;
  const int error = ReadAll(STDIN_FILENO, &content);
  if (error != 0) throw FileError("cannot read", "standard input", error);
  return content;
}

void WriteFile(const std::string& path, std::string_view content) {
  const int error = Replace(path, content);
  if (error != 0) throw FileError("cannot write", path, error);
}

void CheckWritable(const std::string& path) {
  const int error = Probe(path);
  if (error != 0) throw FileError("cannot write", path, error);
}

void MakeFolder(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (!error && !std::filesystem::is_directory(path, error) && !error) {
    error = std::make_error_code(std::errc::not_a_directory);
  }
  if (error) throw FileError("cannot make the folder", path, error.value());
}

}  // namespace plo
