// Which names the scopes of a template mention, while it is parsed.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "coordinator/text/jinja/syntax/syntax.h"

namespace lime::jinja {

// One scope that is not closed yet.
struct OpenScope {
  absl::flat_hash_set<NameId> mentioned;
  std::vector<NameId> set_first;
  std::vector<ScopeId> inside;  // scopes that are closed
  int branches = 0;             // around the current place; what stands in one may not happen
  bool is_loop = false;
};

// Jinja decides when it compiles a template whether a name is a variable of a scope. A name that a
// scope sets before it mentions it otherwise is one from the scope's beginning on, and hides what
// the caller gave. Blocks inside count separately, {% if %} does not.
//
// REQUIRES of most methods: a scope is open.
class NameScopes {
 public:
  explicit NameScopes(std::vector<std::vector<NameId>>& unset) : unset_(unset) {}

  void Enter(OpenScope scope = {}) { open_.push_back(std::move(scope)); }

  // Leaves a scope that Enter takes again.
  OpenScope Leave() {
    OpenScope scope = std::move(open_.back());
    open_.pop_back();
    return scope;
  }

  ScopeId Close() {
    OpenScope scope = Leave();
    for (const ScopeId id : scope.inside) std::erase_if(unset_[id], [&](NameId name) { return scope.mentioned.contains(name); });
    const auto id = static_cast<ScopeId>(unset_.size());
    unset_.push_back(std::move(scope.set_first));
    if (open_.empty()) return id;
    auto& around = open_.back().inside;
    around.insert(around.end(), scope.inside.begin(), scope.inside.end());
    around.push_back(id);
    return id;
  }

  void Read(NameId name) { open_.back().mentioned.insert(name); }

  void Set(NameId name) {
    if (open_.back().mentioned.insert(name).second && open_.back().branches == 0) open_.back().set_first.push_back(name);
  }

  void BeginBranch() { ++open_.back().branches; }
  void EndBranch() { --open_.back().branches; }

  bool IsInLoop() const {
    return std::ranges::any_of(open_, [](const OpenScope& scope) { return scope.is_loop; });
  }

 private:
  std::vector<std::vector<NameId>>& unset_;
  std::vector<OpenScope> open_;
};

}  // namespace lime::jinja
