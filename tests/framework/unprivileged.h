// Root may do everything: tests of permissions give that up for a while.
#ifndef PLO_TESTS_FRAMEWORK_UNPRIVILEGED_H_
#define PLO_TESTS_FRAMEWORK_UNPRIVILEGED_H_

#include <unistd.h>

#include <cstdlib>
#include <initializer_list>
#include <string>

namespace plo {

// While it lives, root acts as the user nobody, to whom it gives `paths`.
class Unprivileged {
 public:
  explicit Unprivileged(std::initializer_list<std::string> paths)
      : user_(geteuid()) {
    for (const std::string& path : paths) given_ &= Give(path);
    if (user_ == 0 && given_) given_ = seteuid(kNobody) == 0;
  }
  ~Unprivileged() {
    if (geteuid() != user_ && seteuid(user_) != 0) std::abort();
  }
  Unprivileged(const Unprivileged&) = delete;

  // False where a sandbox does not let root change its user.
  explicit operator bool() const { return geteuid() != 0; }

 private:
  static constexpr uid_t kNobody = 65534;

  bool Give(const std::string& path) const {
    return user_ != 0 || chown(path.c_str(), kNobody, -1) == 0;
  }

  const uid_t user_;
  bool given_ = true;
};

}  // namespace plo

#endif  // PLO_TESTS_FRAMEWORK_UNPRIVILEGED_H_
