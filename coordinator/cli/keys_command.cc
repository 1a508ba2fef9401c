#include "coordinator/cli/keys_command.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/cli/command.h"
#include "coordinator/cluster/cluster_config.h"
#include "daemon/weights/files.h"
#include "nlohmann/json.hpp"
#include "planner/base/status.h"

extern char** environ;

namespace lime::cli {
namespace {

namespace fs = std::filesystem;

constexpr char kDays[] = "3650";
constexpr char kCoordinator[] = "coordinator";

struct KeysFlags {
  std::string out = "keys";
  std::string cluster;
  std::vector<std::string> names;
  bool json = false;
};

// Runs openssl(1) in `folder`, whose new files nobody else may read. It says on stderr what went wrong.
absl::Status OpenSsl(const std::string& folder, const std::vector<std::string>& arguments) {
  std::vector<std::string> words = {"openssl"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addchdir_np(&actions, folder.c_str());
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "openssl.log", O_WRONLY | O_CREAT | O_TRUNC, 0600);
  const mode_t mask = umask(077);
  pid_t child = 0;
  const int error = posix_spawnp(&child, "openssl", &actions, nullptr, argv.data(), environ);
  umask(mask);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return absl::NotFoundError("the program openssl does not start; install the package openssl");
  int status = 0;
  waitpid(child, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("openssl ", arguments.front(), " failed; ", folder, "/openssl.log tells why"));
}

absl::Status MakeAuthority(const std::string& folder) {
  if (fs::exists(fs::path(folder) / "ca.pem")) return absl::OkStatus();
  return OpenSsl(folder, {"req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", kDays, "-subj",
                          "/CN=LIME cluster", "-keyout", "ca.key", "-out", "ca.pem"});
}

absl::Status MakeKey(const std::string& folder, const std::string& name) {
  const std::string extensions = absl::StrCat(name, ".ext"), request = absl::StrCat(name, ".csr");
  LIME_RETURN_IF_ERROR(WriteTextFile(absl::StrCat(folder, "/", extensions),
                                     absl::StrCat("subjectAltName=DNS:", name, "\nextendedKeyUsage=serverAuth,clientAuth\n")));
  LIME_RETURN_IF_ERROR(OpenSsl(folder, {"req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj",
                                        absl::StrCat("/CN=", name), "-keyout", absl::StrCat(name, ".key"), "-out", request}));
  LIME_RETURN_IF_ERROR(OpenSsl(folder, {"x509", "-req", "-in", request, "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days",
                                        kDays, "-extfile", extensions, "-out", absl::StrCat(name, ".pem")}));
  std::error_code ignored;
  for (const std::string& file : {extensions, request, std::string("openssl.log")}) fs::remove(fs::path(folder) / file, ignored);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> NamesOf(const KeysFlags& flags) {
  std::vector<std::string> names = flags.names;
  if (!flags.cluster.empty()) {
    LIME_ASSIGN_OR_RETURN(const std::string text, OfUser(ReadTextFile(flags.cluster, kMaxClusterBytes + 1)));
    LIME_ASSIGN_OR_RETURN(const ClusterConfig config, OfUser(ParseClusterConfig(text, flags.cluster)));
    for (const ClusterConfig::Device& device : config.devices) names.push_back(device.name);
  }
  if (names.empty()) return WrongCall("keys: no devices; give --cluster C.toml, or --name for each");
  for (const std::string& name : names) {
    if (!IsDeviceName(name) || name == "ca" || name.front() == '-')
      return WrongCall(absl::StrCat("--name ", name.substr(0, 80), ": a name is ", std::string(kDeviceNameRule), ", and not \"ca\""));
  }
  names.push_back(kCoordinator);
  return names;
}

// What is there already stays: a device more needs no new keys for the others.
absl::Status Run(const KeysFlags& flags) {
  LIME_ASSIGN_OR_RETURN(const std::vector<std::string> names, NamesOf(flags));
  std::error_code error;
  fs::create_directories(flags.out, error);
  if (error) return WrongCall(absl::StrCat("--out ", flags.out, ": ", error.message()));
  LIME_RETURN_IF_ERROR(MakeAuthority(flags.out));
  int made = 0;
  for (const std::string& name : names) {
    if (fs::exists(fs::path(flags.out) / absl::StrCat(name, ".pem"))) continue;
    LIME_RETURN_IF_ERROR(MakeKey(flags.out, name));
    ++made;
  }
  if (flags.json) {
    std::cout << nlohmann::json{{"folder", flags.out}, {"keys_made", made}}.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)
              << std::endl;
    return absl::OkStatus();
  }
  std::cout << made << " keys made in " << flags.out
            << ". Copy ca.pem, NAME.pem and NAME.key to each device, for `limed --tls`; here, write "
            << "tls = \"" << flags.out << "\" into [cluster]. Keep ca.key to yourself: who has it can make keys." << std::endl;
  return absl::OkStatus();
}

}  // namespace

void AddKeysCommand(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<KeysFlags>();
  CLI::App* command = app.add_subcommand("keys", "Make the keys by which the devices of a cluster know each other");
  command->footer("Example: lime keys --cluster shelf.toml --out keys");
  command->add_option("--cluster,-c", flags->cluster, "cluster.toml: a key for each of its devices");
  command->add_option("--name", flags->names, "A device; may be given several times")->take_all()->expected(1)->allow_extra_args(false);
  command->add_option("--out,-o", flags->out, "Folder; what is there already stays")->capture_default_str();
  command->add_flag("--json", flags->json, "Print one JSON object and nothing else on stdout");
  command->callback([flags, &exit_code] { exit_code = Finish(Run(*flags)); });
}

}  // namespace lime::cli
