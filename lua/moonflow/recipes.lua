--- Recipes: where whole tasks are told, and by which words people ask for them. `?` at the prompt names them beside the
-- functions that it finds.

local data, training, networks, onnx, processes, mathematics =
  "docs/data.md", "docs/training.md", "docs/networks.md", "docs/onnx.md", "docs/processes.md", "docs/mathematics.md"

-- { where, what stands there, words of the question beside those }
return {
  { data, "Data of your own", "load dataset data loader dataloader batch batches shuffle" },
  { data, "A table with gaps and words", "csv tabular missing values nan impute categorical normalize "
    .. "standardize" },
  { data, "Pictures from files", "png jpeg jpg images load folder resize crop photographs augmentation exif "
    .. "orientation jitter dataloader imagefolder workers prefetch balanced" },
  { data, "A class of each pixel", "segmentation semantic mask masks u-net unet dice iou intersection over union "
    .. "palette ignore 255" },
  { data, "Pictures that are never twice the same", "data augmentation images flip crop noise mixup" },
  { data, "Sounds", "audio speech voice keyword spotting wav spectrogram mel mfcc stft fft microphone stream event "
    .. "vibration" },
  { data, "Words", "text embedding vocabulary tokens tokenize nlp classify sentiment" },
  { data, "Batches of several lengths", "padding pad mask sequences variable length buckets" },
  { data, "Windows of a time series", "sliding window forecast timeseries sequences timeseries_dataset_from_array "
    .. "lookback horizon" },

  { training, "Rates, clipping, weight decay", "learning rate schedule scheduler warmup gradient clipping optimizer "
    .. "freeze regularizer l2" },
  { training, "A rate that the script gives", "one cycle onecycle onecyclelr cyclic warm restarts learning rate "
    .. "schedule scheduler lambda" },
  { training, "In bfloat16", "mixed precision half precision autocast amp float16 loss scale" },
  { training, "Weights in 8 bits", "quantization quantize int8 inference faster batch 1 latency" },
  { training, "More than fits into memory", "out of memory oom recompute gradient activation checkpointing "
    .. "accumulation accumulate large batch deep" },
  { training, "Measures of a prediction", "metrics auc roc log loss confusion matrix precision recall f1 ndcg r2 "
    .. "calibration temperature quantile evaluate" },
  { training, "The best so far, and an early end", "early stopping patience best checkpoint validation overfitting" },
  { training, "To go on after a stop", "resume training checkpoint save restore continue" },
  { training, "Folds", "cross validation kfold k fold split train test" },
  { training, "What variables begin with", "initializer initialization init weights" },
  { training, "Weights of another network", "transfer learning pretrained finetune fine tuning freeze load weights "
    .. "safetensors npz pytorch" },
  { training, "A large net that is tuned by little", "lora adapter peft low rank finetune fine tuning freeze" },
  { training, "A model with all it needs", "preprocessing pipeline save deploy serve inference single row vocabulary "
    .. "standardize scaler" },
  { training, "A gradient inside a job", "gradient penalty wgan second derivative physics pinn maml" },
  { training, "A step of your own", "custom optimizer update rule adadelta adamax rprop lion parameters "
    .. "trainable_variables sgd" },
  { training, "A gradient of your own", "custom gradient backward autograd function module updategradinput straight "
    .. "through estimator reversal binarize quantize round surrogate" },
  { training, "Random numbers in a job", "seed noise reproducible dropout sampling reparameterization vae" },
  { training, "Curves, histograms, pictures", "tensorboard log plot loss curve metrics report visualize" },
  { training, "The graph of a job", "visualize plot network graph summary drawing" },
  { training, "Where does the NaN come from?", "nan inf infinite debug diverge exploding gradients anomaly" },

  { networks, "One weight in several places", "weight sharing tied weights tying embedding output siamese" },
  { networks, "One net over several inputs", "siamese contrastive triplet shared network reuse" },
  { networks, "A state from step to step", "recurrent rnn lstm gru time series forecast sequence state stateful" },
  { networks, "Labels without their places", "ctc speech recognition handwriting alignment" },
  { networks, "A net over a graph", "graph neural network gnn gcn gat nodes edges message passing" },
  { networks, "Recommendations", "recommender two tower retrieval recall top k negatives embedding bag sparse table "
    .. "users items factorization machine fm deepfm bpr collaborative filtering" },
  { networks, "A net that follows another one", "target network exponential moving average ema dqn polyak soft "
    .. "update reinforcement learning" },
  { networks, "A small net that learns from a large one", "distillation teacher student knowledge compress" },
  { networks, "A policy that learns by trying", "reinforcement learning rl ppo policy gradient actor critic reward "
    .. "agent environment" },
  { networks, "Boxes around what is seen", "object detection detector yolo retinanet fcos bounding box boxes anchors "
    .. "iou giou focal loss box coding grid" },
  { networks, "A picture that is trained", "style transfer adversarial example deep dream input optimize saliency "
    .. "grad-cam gradcam class activation map heat map heatmap" },
  { networks, "Pictures that a net draws", "diffusion ddpm ddim denoising guidance unet generative gan wgan vae vq "
    .. "straight through estimator sample images" },
  { networks, "A text, word by word", "generate text language model gpt transformer decoder kv cache sampling" },
  { networks, "Several texts at once", "generate batch prompts padding prefill kv cache temperature top-k top-p "
    .. "nucleus repetition penalty stop token streaming" },
  { networks, "The likeliest text", "beam search decode translation generate" },

  { onnx, "Networks as ONNX files", "import export onnx model pytorch deploy" },
  { onnx, "The operators that are read", "supported operator list opset skl2onnx scikit learn" },
  { onnx, "A new head on a network of others", "transfer learning pretrained backbone trunk feature extractor cut "
    .. "layers finetune fine tuning freeze unfreeze onnx" },
  { onnx, "The boxes of a detector", "object detection yolo nms non max suppression bounding box boxes anchors iou" },

  { processes, "Several processes", "distributed data parallel ddp mpi mpirun cluster machines nodes rank allreduce "
    .. "horovod" },
  { processes, "Learners that come and go", "federated learning fedavg average weights of processes asynchronous "
    .. "server clients shards" },

  { mathematics, "Numbers and tables", "float32 float64 precision rounding timestamps ids truth zero boolean" },
  { mathematics, "All weights as one vector", "evolution strategy genetic flatten parameters line search" },
  { mathematics, "The least of a function", "lbfgs l-bfgs bfgs optim scipy minimize fit curve least squares nonlinear "
    .. "second order newton conjugate gradient cg pinn" },
  { mathematics, "A Gaussian process", "gaussian process kernel regression uncertainty cholesky bayesian "
    .. "linalg solve inverse determinant linear equations likelihood kalman" },
  { mathematics, "An arm that reaches", "jacobian hessian inverse kinematics robot arm gauss newton levenberg "
    .. "marquardt linearize ekf ilqr mpc control" },

  { "docs/porting.md", "Programs of OneFlow", "port migrate oneflow python lua differences" },
  { "docs/porting.md", "From PyTorch", "pytorch torch port migrate state_dict steplr dataloader multiheadattention" },
  { "docs/porting.md", "From JAX", "jax flax optax port migrate" },
  { "docs/embedding.md", "Moonflow inside a C or C++ program", "embed host c api c++ game engine robot real time "
    .. "prepared call threads" },
  { "docs/embedding.md", "Other programs with LuaJIT", "openresty nvim editor luanti game server mod luv event loop" },
  { "docs/embedding.md", "Neovim", "nvim editor plugin event loop" },
  { "docs/embedding.md", "A Minetest mod", "luanti minetest game server learn while played" },
  { "docs/embedding.md", "A service that runs for months", "production server daemon reload newer weights hot reload "
    .. "memory leak limit sigterm" },
  { "docs/repl.md", "The prompt", "repl prompt shell interactive" },

  { "samples/lenet_train.lua", "LeNet learns digits", "mnist convolution cnn image classification" },
  { "samples/mlp_train_async.lua", "An MLP learns digits, with callbacks", "mnist async asynchronous callback" },
  { "samples/gan_mnist.lua", "A DCGAN draws digits", "gan generative adversarial mnist" },
  { "samples/resnet18_train.lua", "A ResNet-18", "resnet cifar residual batch norm" },
  { "samples/resnet50.lua", "A ResNet-50 in bfloat16", "resnet imagenet benchmark" },
  { "samples/transformer_train.lua", "A transformer that writes text", "attention gpt language model characters" },
  { "samples/luv_server.lua", "Predictions on a socket", "server serve http socket luv libuv inference" },
  { "samples/nginx", "A web server that reads digits", "nginx openresty http rest service serve deploy inference "
    .. "image" },
  { "samples/love", "Nets in a game of LÖVE", "love love2d game" },
  { "samples/robot", "A controller in a robot, in C++", "robot control real time c++ cart pole embed" },
}
