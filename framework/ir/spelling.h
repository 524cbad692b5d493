// Suggestions for names that were misspelt.
#ifndef PLO_FRAMEWORK_IR_SPELLING_H_
#define PLO_FRAMEWORK_IR_SPELLING_H_

#include <string>
#include <string_view>
#include <vector>

namespace plo {

// "; did you mean 'x' or 'y'?", or "" when no candidate is near `name`.
std::string DidYouMean(std::string_view name,
                       const std::vector<std::string>& candidates);

}  // namespace plo

#endif  // PLO_FRAMEWORK_IR_SPELLING_H_
