# Shared by the scripts beside it: where the project is, what it needs, how it is built. Sourced,
# not run.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
jobs=${LIME_JOBS:-$(nproc)}
# Slots of ctest: a test uses four (cmake/LimeCtest.cmake). One test more than cores runs, because
# tests also wait.
slots=$((4 * (jobs + 1)))

# Debian 12 names; newer releases have the same.
packages=(
  g++ clang lld libclang-rt-dev cmake ninja-build ccache pkg-config protobuf-compiler protobuf-compiler-grpc
  python3 libtorch-dev libopenblas-dev libhwy-dev libgrpc++-dev libprotobuf-dev libasio-dev libboost-dev liburing-dev libabsl-dev libonig-dev unicode-data
  libutf8proc-dev nlohmann-json3-dev libtomlplusplus-dev libspdlog-dev libcli11-dev libxxhash-dev libssl-dev openssl prometheus-cpp-dev libgtest-dev libgmock-dev libbenchmark-dev
)
# Of tests alone: a machine that only runs LIME gets no SSH server and no browser.
test_packages=(openssh-server openssh-client curl chromium)
command -v npm >/dev/null || test_packages+=(nodejs npm)
lint_packages=(clang-format clang-tidy git)

say() { printf '%s\n' "$*" >&2; }

# help_if_asked "$@": where the script's arguments ask for help, prints its opening comment and ends
# before anything is installed or built.
help_if_asked() {
  local argument
  for argument in "$@"; do
    case $argument in
      -h | --help)
        sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
        exit 0
        ;;
    esac
  done
}

# Installs the packages that are missing, if any. Needs root, or sudo, only then.
install_packages() {
  command -v dpkg-query >/dev/null || { say "This is not a Debian system: install the equivalents of: ${packages[*]}"; return 0; }
  local missing=()
  for package in "${packages[@]}"; do
    [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  local as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || { say "Missing packages: ${missing[*]}. Install them as root: apt-get install ${missing[*]}"; exit 1; }
    as_root=(sudo)
  fi
  say "Installing ${#missing[@]} packages: ${missing[*]}"
  "${as_root[@]}" apt-get update -qq
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

# configure PRESET [CMAKE-ARGUMENT...]: for build/PRESET.
configure() {
  (cd "$root" && cmake --preset "$@" >/dev/null) >&2
}

# build_configured PRESET [TARGET...]: builds what is configured in build/PRESET.
build_configured() {
  local preset=$1
  shift
  export CCACHE_DIR=${CCACHE_DIR:-$root/.cache/ccache}
  export CCACHE_SLOPPINESS=pch_defines,time_macros  # or it would not keep what was compiled with parsed headers
  export CCACHE_DEPEND=1  # what is not in the cache is not preprocessed first: that takes a tenth of compiling
  (cd "$root" && cmake --build --preset "$preset" --parallel "$jobs" ${1:+--target "$@"}) >&2
}

# build PRESET [TARGET...]: both, as the preset says.
build() {
  configure "$1" && build_configured "$@"
}

# Fetches the packages of tests/npm, a new node among them, into .cache/npm. Where that cannot be
# done it says so and succeeds: the tests that need them are skipped and counted.
fetch_npm_packages() {
  local modules=$root/.cache/npm
  mkdir -p "$modules"
  cp "$root"/tests/npm/package*.json "$modules"
  cmp -s "$modules/package-lock.json" "$modules/node_modules/of-lock.json" && return 0
  say "Fetching the packages of tests/npm"
  if command -v npm >/dev/null && (cd "$modules" && npm ci --silent --no-audit --no-fund --ignore-scripts >&2); then
    cp "$modules/package-lock.json" "$modules/node_modules/of-lock.json"
  else
    rm -rf "$modules/node_modules"
    say "npm is missing or does not reach its registry: tests in a browser and with the clients of npm will be skipped"
  fi
}
