"""The look of the bench's plots. Colours are Okabe and Ito's (jfly.uni-koeln.de/color), told apart with any colour vision;
each peer has a mark of its own besides, so that no colour speaks alone."""

PANEL, INK, MUTED, RULE = "#fcfbf8", "#1d2733", "#5b6673", "#e3e5e5"

OURS = ("#d55e00", "o")
MARKS = {
    "flashlab": OURS,
    "torch-cudnn": ("#0072b2", "s"),
    "torch-flash": ("#56b4e9", "D"),
    "torch-flex": ("#009e73", "^"),
    "torch-efficient": ("#cc79a7", "v"),
    "torch-math": ("#5b6673", "P"),
    "flash-attn": ("#56b4e9", "d"),
    "flash-attn-4": ("#e69f00", "*"),
    "flashinfer": ("#000000", "X"),
    "xformers": ("#cc79a7", "<"),
    "flashlab-bf16": ("#e9a27c", "o"),
    "flashlab-unsplit": ("#e9a27c", "h"),
    "loads-alone": ("#5b6673", "|"),
}
SERIES = ("#d55e00", "#0072b2", "#009e73", "#cc79a7")

LOOK = {
    "figure.dpi": 100,
    "figure.facecolor": PANEL,
    "savefig.facecolor": PANEL,
    "axes.facecolor": PANEL,
    "axes.edgecolor": RULE,
    "axes.labelcolor": MUTED,
    "axes.titlecolor": INK,
    "axes.titlelocation": "left",
    "axes.titlesize": 12,
    "axes.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": RULE,
    "text.color": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "font.size": 10,
    "legend.frameon": False,
}
