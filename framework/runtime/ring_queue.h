// A queue that allocates only while it grows.
#ifndef PLO_FRAMEWORK_RUNTIME_RING_QUEUE_H_
#define PLO_FRAMEWORK_RUNTIME_RING_QUEUE_H_

#include <cstddef>
#include <vector>

namespace plo {

template <typename T>
class RingQueue {
 public:
  // A power of two.
  explicit RingQueue(size_t capacity) : items_(capacity) {}

  bool empty() const { return head_ == tail_; }
  size_t size() const { return tail_ - head_; }
  // Number `i` from the front.
  T& operator[](size_t i) { return At(items_, head_ + i); }
  T& front() { return At(items_, head_); }

  void Push(const T& item) {
    if (size() == items_.size()) Grow();
    At(items_, tail_++) = item;
  }
  T Pop() { return At(items_, head_++); }

 private:
  static T& At(std::vector<T>& items, size_t i) {
    return items[i & (items.size() - 1)];
  }
  void Grow() {
    std::vector<T> larger(items_.size() * 2);
    for (size_t i = head_; i != tail_; ++i) At(larger, i) = At(items_, i);
    items_.swap(larger);
  }

  std::vector<T> items_;
  size_t head_ = 0;
  size_t tail_ = 0;
};

}  // namespace plo

#endif  // PLO_FRAMEWORK_RUNTIME_RING_QUEUE_H_
