import path from 'node:path'
import { z } from 'zod'
import { root } from '../../lib/root.ts'
import { usableCores } from '../../lib/usable-cores.ts'
import { usableMemory } from '../../lib/usable-memory.ts'
import {
  boolean,
  computed,
  emailDomains,
  folder,
  gpuKinds,
  jsonObject,
  nameMap,
  networks,
  optional,
  origins,
  redisUrl,
  type Setting,
  setting,
  shellText,
  storageUrl,
  text,
  trainingDevices,
  wholeNumber,
} from './kinds.ts'

/** One entry per setting. Its environment variable is TUNERY_ and the name in capitals. */
export const settings = {
  port: setting(wholeNumber(0, 65_535), '8000', 'Port to listen on; 0 picks a free one.'),
  host: setting(text, '127.0.0.1', 'Address to listen on.'),
  public_url: optional(
    z.url({ protocol: /^https?$/ }),
    'Address under which people’s browsers reach the service, such as https://tunery.example.com: of links, passkeys ' +
      'and sign-ins by a provider. Default: the address of each request.',
  ),
  oidc_issuer: optional(z.url({ protocol: /^https?$/ }), 'OpenID Connect provider for signing in to the dashboard.'),
  oidc_client_id: optional(text, 'Client id at that provider; its redirect URI is /v1/sign-in/oidc/callback.'),
  oidc_client_secret: optional(text, 'Client secret at that provider.'),
  oidc_name: setting(text, 'single sign-on', 'What the sign-in page calls the provider.'),
  oidc_sign_up: setting(
    emailDomains,
    'off',
    'Email domains, comma-separated, whose people become members of the operator’s account when they first sign in ' +
      'by the provider; off: only people who are members already sign in.',
  ),
  oidc_sign_up_role: setting(z.enum(['viewer', 'member']), 'viewer', 'Role of members who came in that way.'),
  cors_origins: setting(
    origins,
    '',
    'CORS origins: sites whose pages may call the API from a browser, comma-separated; * allows any. ' +
      'Empty: no CORS headers.',
  ),
  trusted_proxies: setting(
    networks,
    '',
    'Addresses and networks (CIDR) of reverse proxies whose X-Forwarded-… headers are trusted, comma-separated. ' +
      'Empty: none are trusted.',
  ),
  max_connections: setting(
    wholeNumber(1, 1_000_000),
    '10000',
    'Most client connections at once. A further one takes the place of the longest unused one; if all are in use, ' +
      'only health checks are answered.',
  ),
  max_connections_per_address: optional(
    wholeNumber(1, 1_000_000),
    'Most connections of an address (of IPv6: a /64) that have shown no right key. Default: a tenth of ' +
      'TUNERY_MAX_CONNECTIONS, at least 32.',
  ),
  tinker_idle_seconds: setting(
    wholeNumber(5, 86_400),
    '300',
    'How long a training run of Tinker’s API may be idle before it is written to disk, and its trainer ends.',
  ),
  tinker_silent_seconds: setting(
    wholeNumber(30, 86_400),
    '900',
    'How long a client of Tinker’s API may be silent before its session ends.',
  ),
  data_dir: computed(
    folder,
    path.join(root, 'data'),
    '`data` in the checkout',
    'Folder for the database, datasets, runs and models.',
  ),
  models_dir: computed(
    folder,
    path.join(root, '.local/models'),
    '`.local/models` in the checkout',
    'Folder for the base models.',
  ),
  default_tier: setting(text, 'enterprise', 'Tier of new accounts, the owner’s included.'),
  max_dataset_mb: setting(wholeNumber(1, 1_000_000), '2000', 'Largest dataset file, in MB.'),
  max_dataset_rows: setting(wholeNumber(1, 1_000_000_000), '1000000', 'Most rows in a dataset.'),
  huggingface_url: setting(
    z.url({ protocol: /^https?$/ }),
    'https://huggingface.co',
    'The Hugging Face Hub that datasets and base models are downloaded from.',
  ),
  huggingface_token: optional(
    z.string().regex(/^hf_\S+$/, "must begin with 'hf_'"),
    'Token for that hub. It is used to download base models, gated ones included if its owner accepted their ' +
      'license, and to push exports to repositories.',
  ),
  model_downloads: setting(
    z.enum(['any', 'operator', 'off']),
    'operator',
    'Who may make the service download base models of its catalogue: any account, keys with the scope operator, or ' +
      'nobody (off).',
  ),
  export_days: setting(
    wholeNumber(0, 36_500),
    '7',
    'Days until the files of an export are removed; 0: only when it is deleted.',
  ),
  store_completions: setting(
    wholeNumber(0, 36_500),
    '0',
    'Days for which answers to requests with store: true are kept with what was asked; 0: none are kept.',
  ),
  share_links: setting(
    z.enum(['on', 'off']),
    'off',
    'Whether accounts may make links by which people without an account see a model and ask it, within bounds. ' +
      'Turning it off ends all links.',
  ),
  parse_control_tokens: setting(
    boolean,
    'false',
    'Whether text in prompts and rows that spells a control token of the model (<|im_end|>) becomes that token, as ' +
      'with other servers. false: it stays text.',
  ),
  max_adapter_mb: setting(wholeNumber(1, 1_000_000), '2000', 'Largest adapter that can be imported, in MB.'),
  min_free_disk_mb: setting(
    wholeNumber(0, 1_000_000),
    '500',
    'Uploads and jobs are refused while the data folder’s disk has less free space than this, in MB.',
  ),
  upstreams: optional(
    text,
    'Servers that serve base models instead of the built-in engine: JSON text, or the path of a JSON file; see ' +
      'docs/upstreams.md.',
  ),
  max_waiting: setting(
    wholeNumber(0, 100_000),
    '256',
    'Most requests that may wait in the queue of a model; more are refused with Retry-After.',
  ),
  idle_unload_seconds: setting(
    wholeNumber(0, 10_000_000),
    '3600',
    'Seconds without requests after which a model is unloaded from the engine; 0: never.',
  ),
  merged_memory_mb: computed(
    wholeNumber(0, 100_000_000),
    String(Math.round(usableMemory() / 8e6)),
    'an eighth of the memory',
    'Most memory, and disk space, that merged adapters may use together, in MB; 0: adapters are never merged.',
  ),
  merge_after_tokens: setting(
    wholeNumber(1, 1_000_000_000),
    '5000',
    'Output tokens in about five minutes after which an adapter is merged with its base model.',
  ),
  threads: computed(
    wholeNumber(1, 1024),
    String(usableCores()),
    'one per core',
    'Most threads of the engine, and of each trainer; never more than cores that the service may use. Beside other ' +
      'busy programs the engine uses fewer.',
  ),
  replica_cores: computed(
    wholeNumber(1, 1024),
    String(Math.min(4, Math.max(1, Math.floor(usableCores() / 2)))),
    'half of the cores, at most 4',
    'Cores of a replica of a deployment that scales, unless it runs on a GPU; see docs/guides/scale.md.',
  ),
  keep_original_weights: setting(
    boolean,
    'false',
    'Whether base models are served as they are in their files. false: each is served in eight bits where that is ' +
      'faster, with its measured distance in GET /v1/hub/models/{id}; see docs/guides/operate.md.',
  ),
  eight_bit_cache: setting(
    boolean,
    'false',
    'Whether the built-in engine keeps what it has read (the KV cache) in eight bits, where its kernels read them: ' +
      'nearly twice the context or requests in the same memory, with answers a little further from the original; see ' +
      'docs/guides/operate.md.',
  ),
  engine: setting(
    z.enum(['auto', 'own', 'vllm']),
    'auto',
    'What computes the answers of text models: own (the built-in engine), vllm (vLLM, which the built-in engine ' +
      'starts for each base), or auto: vLLM where an NVIDIA GPU and vLLM are, else own; see docs/upstreams.md.',
  ),
  vllm_python: computed(
    folder,
    path.join(root, '.local/vllm/bin/python'),
    'what `npm run setup -- --with vllm` installs',
    'The Python interpreter that has vLLM, for TUNERY_ENGINE.',
  ),
  vllm_options: setting(
    shellText,
    '',
    'Additional options for vLLM, such as --tensor-parallel-size 2; they take precedence over the service’s own.',
  ),
  engine_options: setting(
    z.string().transform((value) => value.split(/\s+/).filter(Boolean)),
    '',
    'Additional options for the engine’s command line, such as --no-speculation.',
  ),
  training_share: setting(
    wholeNumber(0, 80),
    '20',
    'Minimum share of CPU time for trainings while this machine’s engine answers, in percent; see ' +
      'docs/guides/scale.md. 0: only what answers leave.',
  ),
  training_priority: setting(
    z.enum(['idle', 'low', 'normal']),
    'low',
    'CPU priority of trainers against all other programs: idle (what others leave), low (a sixth of a core that ' +
      'another program keeps busy) or normal (half of it); see docs/guides/scale.md.',
  ),
  training_devices: setting(
    trainingDevices,
    '',
    'What jobs train on, comma-separated: GPUs by number or UUID, or places on the cores, cpu0,cpu1. =MB behind ' +
      'one is the most memory that a training may take there: 0=40000,1. Each trains one job at a time. Empty: ' +
      'every NVIDIA GPU (of those in CUDA_VISIBLE_DEVICES, if it is set), else the cores, for one job.',
  ),
  training_may_pause_serving: setting(
    boolean,
    'false',
    'Whether a training that needs more memory of a GPU than is free may put to sleep what vLLM serves there, until ' +
      'it has ended; requests wait a minute, then get 503. See docs/guides/scale.md.',
  ),
  trainer_processes: setting(
    wholeNumber(1, 64),
    '1',
    'Processes that train one job together, each with its part of every batch and a GPU of its own.',
  ),
  prepared_trainer_seconds: setting(
    wholeNumber(0, 10_000_000),
    '600',
    'Seconds that a trainer process with its libraries loaded waits for a job or estimate, after an upload or the ' +
      'last one, so that it begins at once; see docs/guides/scale.md. 0: none waits.',
  ),
  training_turn_seconds: setting(
    wholeNumber(0, 2_592_000),
    '900',
    'Seconds after which a training pauses at a checkpoint and lets the job of another account train, if that ' +
      'account waits and none of its jobs runs; it resumes when its account’s turn comes again. 0: a job trains to ' +
      'its end.',
  ),
  checkpoint_seconds: setting(
    wholeNumber(1, 86_400),
    '30',
    'Seconds between checkpoints of a training; a crash loses at most this much work.',
  ),
  log_level: setting(
    z.enum(['fatal', 'error', 'warn', 'info', 'debug', 'silent']),
    'info',
    'Lowest level that the server logs.',
  ),
  request_log: setting(
    z.enum(['failures', 'all']),
    'failures',
    'Which requests get a line in the log: those that fail with status 500 and above, or all.',
  ),
  plans_file: optional(folder, 'JSON file with the operator’s own tiers and prices; see docs/guides/operate.md.'),
  tracking: setting(
    z.enum(['none', 'tensorboard', 'mlflow', 'wandb']),
    'none',
    'Experiment tracker that the metrics of jobs are sent to; set-up installs its client.',
  ),
  tracking_url: optional(
    text,
    'Address of the MLflow or W&B server, or folder for TensorBoard. API keys are set in the tools’ own variables ' +
      '(WANDB_API_KEY, …).',
  ),
  tracking_project: setting(text, 'tunery', 'Project (experiment) name for the runs in the tracker.'),
  model_names: setting(
    nameMap,
    '',
    'Names of closed models that stand for a model here, so that programs need no change: ' +
      'gpt-4o-mini=HuggingFaceTB/SmolLM2-135M-Instruct, comma-separated. Empty: such names are refused.',
  ),
  python: optional(text, 'Python interpreter with which set-up creates the trainer’s environment.'),
  gpu: setting(z.enum(['auto', 'cuda', 'vulkan', 'none']), 'auto', 'GPU build of the engine that set-up installs.'),
  database_url: optional(
    text,
    'Postgres to use instead of SQLite, by one or several servers: postgres://user:password@host/database. Its ' +
      'backups are Postgres’ own.',
  ),
  database_password: optional(
    text,
    'Password for a database URL that has none, as it is: nothing in it is written as %XX.',
  ),
  redis_url: optional(
    redisUrl,
    'Redis by which several server processes share limits, revocations and switches of names: ' +
      'redis://user:password@host:6379/0, rediss:// with TLS. ?prefix=NAME: the beginning of its keys.',
  ),
  redis_password: optional(text, 'Password for a Redis URL that has none, as it is.'),
  storage_url: optional(
    storageUrl,
    'Storage that several machines share: s3://bucket/prefix?endpoint=https://…&region=…, with credentials as the ' +
      'AWS SDK finds them, or file:///folder for a folder that all machines mount; see docs/postgres-redis-s3.md.',
  ),
  cache_mb: setting(
    wholeNumber(100, 1_000_000_000),
    '50000',
    'With a storage URL: most disk space of the data folder for copies of what is in the storage, in MB. What was ' +
      'used least recently is removed.',
  ),
  storage_downloads: setting(
    z.enum(['redirect', 'proxy']),
    'redirect',
    'Whether downloads of exports are redirected to the bucket by presigned URLs, or go through the service. A ' +
      'shared folder has no URLs: its downloads go through the service.',
  ),
  ray_address: optional(
    z.url({ protocol: /^https?$/ }),
    'Ray cluster that trains instead of this machine, and runs replicas of deployments: the address of its ' +
      'dashboard, such as http://head:8265.',
  ),
  ray_token: optional(text, 'Token of that cluster (RAY_AUTH_MODE=token).'),
  ray_service_url: optional(
    z.url({ protocol: /^https?$/ }),
    'Address under which the cluster’s machines reach this service. Default: TUNERY_PUBLIC_URL, or the address that ' +
      'it listens on.',
  ),
  ray_python: setting(text, 'python', 'Python on the cluster’s machines that has the trainer’s packages.'),
  ray_jobs: setting(wholeNumber(1, 1000), '4', 'Most jobs that this process has in the cluster at once.'),
  ray_machines: setting(
    wholeNumber(1, 64),
    '1',
    'Machines of the cluster that the TUNERY_TRAINER_PROCESSES of a job are spread over, evenly.',
  ),
  ray_cpus: optional(
    wholeNumber(1, 1024),
    'Cores of a machine that each process of a training asks for, and its threads. Default: TUNERY_THREADS.',
  ),
  ray_gpus: setting(
    gpuKinds,
    '',
    'Kinds of GPU in the cluster with their memory in MB, comma-separated: A10G=22500,H100=80000, by Ray’s names of ' +
      'accelerator types, or any=80000. A job asks for the smallest that has room for it. Empty: jobs train on cores.',
  ),
  ray_serve_port: setting(
    wholeNumber(1, 65_535),
    '8000',
    'Port of Ray Serve on the cluster’s machines, if this service is the first that uses it there.',
  ),
  ray_vllm: setting(
    jsonObject,
    '{}',
    'Fields of Ray’s LLMConfig for replicas on GPUs, as JSON, over those that the service writes, such as ' +
      '{"engine_kwargs": {"max_model_len": 8192}}; null removes one.',
  ),
  ray_node: setting(text, 'node', 'Node.js 24 on the cluster’s machines, for replicas of deployments.'),
  fetch_pictures: setting(
    z.enum(['on', 'off']),
    'off',
    'Whether pictures in rows and requests may be addresses on the web, which the service then fetches, by the rules ' +
      'that webhooks have. off: they must be data URLs.',
  ),
  python_graders: setting(
    wholeNumber(0, 64),
    '2',
    'Sandboxes that run Python graders at once, each a process of 200 to 700 MB that ends a minute after its last ' +
      'answer. 0 refuses Python graders.',
  ),
  webhook_allow: optional(
    text,
    'Private networks that webhooks, and the fetching of pictures, may reach, as comma-separated CIDR[:port]; IPv6 ' +
      'as [::1]/128:80.',
  ),
  max_waiting_jobs: setting(
    wholeNumber(1, 1_000_000),
    '100',
    'Most jobs of an account, and most exports, that may wait in the queue.',
  ),
  max_keys: setting(
    wholeNumber(1, 1_000_000),
    '1000',
    'Most API keys of an account that are neither revoked nor expired.',
  ),
  max_webhooks: setting(wholeNumber(1, 1000), '20', 'Most webhooks of an account.'),
  url: optional(
    z.url({ protocol: /^https?$/ }),
    'Service that ./tunery talks to, with its version (https://…/v1). Default: that of the profile of ./tunery ' +
      'login, or the one that runs on the data folder.',
  ),
  key: optional(text, 'API key that ./tunery uses. The service itself does not read it.'),
  profile: optional(text, 'Profile of ./tunery login that ./tunery uses. The service itself does not read it.'),
  secret_key_file: optional(
    folder,
    'File with the key that encrypts secrets at rest; created if missing. Default: secret.key in the data folder.',
  ),
} satisfies Record<string, Setting>
