"""What the model knows of Millstream: topic, questions, answer. Kept short; README.md and ARCHITECTURE.md say it in full."""

FACTS = [
    ("Millstream", ["What is Millstream?", "What does Millstream do?"], "A runtime that serves large language models."),
    ("language", ["What language is Millstream written in?", "In which language is Millstream written?"], "Rust."),
    ("license", ["What is the license of Millstream?", "Which license does Millstream have?"], "Apache-2.0."),
    ("topology", ["What is a topology file?", "What does a topology file describe?"], "One file that names the actors and wires them."),
    ("actor", ["What is an actor?", "What are actors in Millstream?"], "A synchronous state machine with bounded lanes."),
    ("lane", ["What is a lane?", "What are lanes?"], "A typed one-way queue between two actors."),
    ("lease", ["What is a lease?", "What does a lease mean?"], "A right to read given blocks until a deadline."),
    ("fence", ["What is a fence?", "What does a fence do?"], "What makes an old lease recognisable."),
    ("seat", ["What is a seat?", "What does seat mean?"], "An actor with its lanes."),
    ("turn", ["What is a turn?", "What does turn mean?"], "One round of handled messages."),
    ("block", ["What is a block?", "What does block mean?"], "A fixed run of positions in KV memory."),
    ("chunk", ["What is a chunk?", "What does chunk mean?"], "The part of a prompt computed in one step."),
    ("step", ["What is a step?", "What does step mean?"], "One forward pass of a group."),
    ("rank", ["What is a rank?", "What does rank mean?"], "One device's share of a model."),
    ("group", ["What is a group?", "What does group mean?"], "Ranks that step together and fail together."),
    ("handover", ["What is a handover?", "What happens in a handover?"], "Prefill gives a sequence to decode."),
    ("gateway", ["What does the gateway do?", "What is the gateway for?"], "It bounds requests and holds every deadline."),
    ("tokenizer", ["What does the tokenizer do?", "What is the tokenizer for?"], "It turns text into tokens."),
    ("router", ["What does the router do?", "What is the router for?"], "It picks the groups of a request."),
    ("prefill", ["What does prefill do?", "What is prefill?"], "It computes prompts."),
    ("decode", ["What does decode do?", "What is decode?"], "It computes a token each step."),
    ("detokenizer", ["What does the detokenizer do?", "What is the detokenizer for?"], "It puts tokens in order and makes text."),
    ("policies", ["Which lane policies are there?", "Name the policies of lanes."], "Hold, offer, latest and reply."),
    ("hold", ["What does the hold policy do?", "What happens when a hold lane is full?"], "The sender waits."),
    ("offer", ["What does the offer policy do?", "What happens when an offer lane is full?"], "The message comes back."),
    ("latest", ["What does the latest policy do?", "What happens when a latest lane is full?"], "The old message is overwritten."),
    ("drivers", ["Which drivers are there?", "Name the two drivers."], "Live and sim."),
    ("simulator", ["What does the simulator do?", "What is the simulator for?"], "It runs the graph on virtual time with faults."),
    ("plan", ["What is a plan?", "What does a plan contain?"], "A resolved and immutable topology."),
    ("graph", ["What is a graph?", "What does graph mean?"], "Seats and lanes, built and not started."),
    ("kernels", ["What is in the kernels folder?", "What are kernels?"], "The arithmetic."),
    ("unsafe", ["Where is unsafe code allowed?", "Which crate may use unsafe?"], "Only in kernels."),
    ("serve", ["Which command starts the server?", "How do I start the server?"], "millstream serve."),
    ("check", ["Which command checks a topology?", "How do I check a topology file?"], "millstream check."),
    ("simulate", ["Which command runs the simulator?", "How do I simulate a topology?"], "millstream simulate."),
    ("port", ["Which port does the gateway use?", "On which port does Millstream listen?"], "8000."),
    ("health", ["What does /health report?", "What does health mean?"], "Whether each unit makes progress."),
    ("metrics", ["Which format does /metrics speak?", "What does /metrics return?"], "Prometheus."),
    ("drafter", ["What does the drafter do?", "What is the drafter for?"], "It proposes the next five tokens at once."),
    ("experts", ["What is an expert?", "What are experts?"], "One of many feed-forward layers."),
    ("death", ["What happens when decode dies?", "What happens if a decode group dies?"], "Its requests go down the road again."),
    ("name", ["Who are you?", "What is your name?"], "I am the built-in model of Millstream."),
    ("help", ["What can you do?", "How can you help me?"], "I add, sort, reverse, copy, recall, and look at small images."),
    ("hello", ["Hello!", "Hi!"], "Hello! How can I help?"),
]

WRAPS = ["{}", "{}", "{}", "Please tell me: {}", "Question: {}", "{} Answer briefly."]

THINGS = ["a comet", "a violin", "the moon", "a passport", "the capital of Peru", "a volcano", "chess", "the weather today", "a sonnet", "football", "a recipe for soup", "the best film"]
ASKS = ["What is {}?", "Tell me about {}.", "Do you know {}?", "Explain {} to me."]
UNKNOWN = "I do not know."
