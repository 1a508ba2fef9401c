"""The figures that Layer-Streaming and OptMLX print, for the tables of bench/paper_models.py. Sizes are GB as printed: the sizes of models show that they are GiB."""
NINE, NINE_8, TWENTY_SEVEN, FOUR, SMALL, NINE_BF16 = "Qwen3.5-9B-6bit", "Qwen3.5-9B-8bit", "Qwen3.5-27B-4bit", "Qwen3.5-4B-4bit", "Qwen3.5-0.8B-8bit", "Qwen3.5-9B-bf16"

# Layer-Streaming

# Table 3: memory of a model in memory, and with no layer resident.
REDUCTION = {SMALL: (0.74, 0.29), FOUR: (2.34, 0.47), NINE_8: (8.86, 2.29), TWENTY_SEVEN: (14.09, 1.70)}
# Table 4, Mac Studio, 9B-8bit: tokens/s, memory, share of the time that is I/O.
TRADEOFF = {"0 %": (1.7, 2.31, 0.81), "25 %": (2.2, 4.02, 0.80), "50 %": (3.2, 5.73, 0.77), "75 %": (5.9, 7.44, 0.70), "baseline": (68.3, 8.97, 0)}
# Table 7, 9B-6bit: resident layers of 32; tokens/s on the iPad and on the iPhone; memory.
BUDGETS = {"0 %": (0, 0.28, 0.27, 1.78), "2.0 GiB": (2, 0.30, 0.29, 2.12), "3.0 GiB": (8, 0.37, 0.34, 3.12), "3.5 GiB": (11, 0.39, 0.39, 3.63),
           "4.0 GiB": (14, 0.45, 0.45, 4.13), "5.0 GiB": (20, 0.57, 0.21, 5.13)}
# Table 8, 9B-6bit on the iPad: resident layers of 32, tokens/s, memory.
MODES = {"full stream": (0, 0.28, 1.78), "balanced": (2, 0.26, 5.60), "max-context": (22, 0.39, 5.47), "max-tps": (24, 0.03, 5.80)}
MODES_GIB = 6.5  # that were available
# Table 9, 4B-4bit: tokens/s and their share of the baseline on the iPad and on the iPhone; memory in MB.
SWEEP = {"0 %": (2.3, 0.06, 1.8, 0.10, 436), "25 %": (3.9, 0.11, 3.0, 0.16, 916), "50 %": (5.2, 0.15, 3.8, 0.21, 1395), "75 %": (6.5, 0.18, 4.7, 0.25, 1875),
         "90 %": (10.3, 0.29, 6.0, 0.33, 2114), "100 %": (22.7, 0.64, 5.9, 0.32, 2293), "baseline": (35.5, 1, 18.4, 1, 2330)}
LAYER_MS = {"Mac Studio": (14, 0.06), "iPad": (100, 0.06)}  # section 5.2: load of a layer of 200 MB, its computation
STREAM_GOAL = 1.05  # time / limit of the dense 9B model under a hard limit of memory

# OptMLX

# Table 2: seconds to load, standard and mmap, page cache warm. Table 3 of the same models: prompt tokens/s, tokens/s, memory; each standard and mmap.
LOAD = {"Qwen3-4B-4bit": (0.101, 0.131), "Qwen3-4B-8bit": (0.184, 0.246), "Qwen3-8B-3bit": (0.146, 0.075), "Qwen3-8B-4bit": (0.352, 0.328),
        "Qwen3-8B-6bit": (0.637, 0.435), "Qwen3-8B-8bit": (2.572, 0.125), "Qwen3-14B-4bit": (2.323, 0.535), "Qwen3-14B-6bit": (3.701, 5.388)}
INFERENCE = {"Qwen3-4B-4bit": ((189.1, 188.6), (56.9, 58.5), (2.38, 2.38)), "Qwen3-4B-8bit": ((165.8, 159.7), (41.0, 42.0), (4.37, 4.37)),
             "Qwen3-8B-3bit": ((100.8, 92.3), (29.9, 29.4), (4.37, 4.37)), "Qwen3-8B-4bit": ((89.8, 100.7), (30.1, 30.1), (4.72, 8.82)),
             "Qwen3-8B-6bit": ((86.7, 75.7), (20.7, 20.7), (8.82, 8.82)), "Qwen3-8B-8bit": ((64.4, 80.6), (21.6, 21.3), (8.82, 8.84)),
             "Qwen3-14B-4bit": ((43.4, 43.2), (16.2, 16.5), (8.84, 11.09)), "Qwen3-14B-6bit": ((39.7, 37.0), (12.1, 12.0), (12.08, 12.16))}
PROMPT_TOKENS = 34
# Table 4: first token in ms, tokens/s, more memory than growing.
FIRST = {"Qwen3-4B-4bit": {"growing": (260.4, 62.0, 0), "reserved 2048": (276.2, 63.0, 0.250), "reserved 4096": (285.2, 62.3, 0.515)},
         "Qwen3-8B-4bit": {"growing": (419.2, 31.3, 0), "reserved 2048": (428.0, 30.3, 0.238), "reserved 4096": (436.1, 29.7, 0.513)},
         "Qwen3-14B-4bit": {"growing": (859.6, 16.7, 0), "reserved 2048": (917.4, 16.0, 0.274), "reserved 4096": (901.5, 16.1, 0.587)}}
