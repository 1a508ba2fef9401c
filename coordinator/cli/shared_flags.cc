// The flags that several commands have, in the words of --help.
#include "CLI/CLI.hpp"
#include "coordinator/cli/command.h"
#include "coordinator/cli/default_cluster.h"
#include "coordinator/cli/plan_inputs.h"
#include "coordinator/cli/residency_flags.h"

namespace lime::cli {

void AddWithoutFlag(CLI::App& app, std::vector<std::string>& without) {
  app.add_option("--without", without, "With --cluster, a device to leave out; may be given several times")
      ->take_all()
      ->expected(1)
      ->allow_extra_args(false);
}

void ResidencyFlags::AddTo(CLI::App& app) {
  app.add_option("--memory", memory, "Memory budget of the process, such as 2GiB; what does not fit streams from the disk");
  app.add_option("--memory-mode", priority,
                 "Without --memory, what is kept free: max-tps (KV of 512 tokens), balanced (1,024) or max-context (all of the model's)")
      ->capture_default_str();
  app.add_option("--placement", placement, "Which blocks stay where not all fit: first_n, last_n, interleaved, or auto for the fastest")
      ->capture_default_str();
  app.add_option("--pool", pool, "Ring for streamed pieces: a number of pieces or a size such as 128MiB, two pieces at least; else chosen");
  app.add_option("--resident", resident, "Share of the weights to keep in memory at most, such as 50%; else as much as fits");
}

void ModelFlags::AddTo(CLI::App& app) {
  app.add_option("--model,-m", model, "Folder of a Hugging Face checkpoint; with --cluster, without it the one that the file names");
  app.add_option("--threads", threads, "Compute threads; 0: one for every core this process may use")->capture_default_str();
  app.add_option("--loader", loader, "How weights reach memory: read (direct reads), mmap (zero copy) or auto")->capture_default_str();
  app.add_option("--context", context, "Positions of KV cache reserved for each sequence; 0: as many as the call needs");
  app.add_option("--kv", kv,
                 "Memory of the KV cache: reserve all of it up front, or let it grow as it is written; where parts stream, more of them do "
                 "then as it grows")
      ->capture_default_str();
  app.add_option("--chunk", chunk, "Tokens of a prompt computed in one step; 0: chosen for the machine");
  residency.AddTo(app);
  app.add_option("--profile", profile, "File of `lime profile --out` to predict from, instead of the figures kept for this machine");
  app.add_option("--numerics", numerics, "auto, or portable: the one order of reduction that every CPU implements")->capture_default_str();
  AddOptionalClusterFlag(app, cluster, "cluster.toml: run on its devices instead of this one (`run`, `score`)");
  app.add_flag("--json", json, "Print one JSON object and nothing else on stdout");
}

void PlanInputFlags::AddTo(CLI::App& app) {
  app.add_option("--model,-m", model, "Folder of a checkpoint; its headers are read, its weights are not")->group("What to plan");
  app.add_option("--model-spec", model_spec, "A config.json with a dtype: a model whose weights are not here")->group("What to plan");
  AddOptionalClusterFlag(app, cluster, "cluster.toml: the devices, each with a profile")->group("What to plan");
  AddWithoutFlag(app, without);
  app.add_option("--device-profiles", device_profiles, "JSON that describes devices by profiles or by rates")->group("What to plan");
  app.add_option("--bandwidth", bandwidth, "Of every link, such as 200Mbit/s, instead of what the files say")->group("What to plan");
  app.add_option("--tokens,--context", tokens, "Context planned for: prompt and answer of each sequence")
      ->capture_default_str()
      ->group("Request");
  app.add_option("--sequences", sequences, "Requests served at a time; how they are batched is chosen (without it: 1)")->group("Request");
  app.add_option("--batch", batch, "Sequences in one micro-batch, instead of choosing; alone it is also the number of requests")
      ->group("Request");
  app.add_option("--kv-tokens", kv_tokens, "Of them, those that KV is reserved for at first: more comes as parts stream instead; 0: all")
      ->group("Request");
  app.add_flag("--no-kv-spill", no_kv_spill, "Keep all KV in memory: none of it goes to the devices' disks")->group("Request");
  app.add_flag("--no-kv-lending", no_kv_lending, "Keep all KV on the devices of its layers: none of it in the memory of others")
      ->group("Request");
  app.add_flag("--no-remote-attention", no_remote_attention,
               "No device attends to KV of another one's layers: what it keeps of it comes back for every use")
      ->group("Request");
  app.add_option("--prompt-tokens", prompt_tokens, "Length of a prompt, for the time to the first token; 0: not planned")->group("Request");
  app.add_option(
         "--piece", piece,
         "Longest piece in which a block streams, or none for whole blocks; without it 64MB, and none for the strategies that lime is "
         "compared with")
      ->group("Search");
}

}  // namespace lime::cli
