import { readdirSync } from 'node:fs'
import { isIP } from 'node:net'
import os from 'node:os'
import path from 'node:path'
import { z } from 'zod'
import { root } from '../lib/root.ts'

/** NVIDIA's GPUs of this machine. */
const gpus = () => readdirSync('/dev').filter((name) => /^nvidia\d+$/.test(name)).length

const text = z.string().min(1)
const folder = text.transform((value) => path.resolve(value))
const whole = (min: number, max: number) =>
  z.string().regex(/^\d+$/, 'must be a whole number').transform(Number).pipe(z.int().min(min).max(max))

const truth = z.enum(['true', 'false'], { error: 'must be true or false' }).transform((value) => value === 'true')

const commaSeparated = (item: z.ZodType<string, string>) =>
  z
    .string()
    .transform((value) =>
      value
        .split(',')
        .map((each) => each.trim())
        .filter(Boolean),
    )
    .pipe(z.array(item))
const origins = commaSeparated(
  z
    .string()
    .refine(
      (each) => each === '*' || (/^https?:[^*]+$/.test(each) && URL.canParse(each) && new URL(each).origin === each),
      {
        error: ({ input }) =>
          `'${input}' is neither * nor an origin such as https://app.example.com (no path, no slash at its end)`,
      },
    ),
)
const networks = commaSeparated(
  z.string().refine(isNetwork, {
    error: ({ input }) => `'${input}' is neither an address nor a network such as 10.0.0.0/8 or fd00::/8`,
  }),
)
function isNetwork(text: string): boolean {
  const [address = '', bits, ...more] = text.split('/')
  const most = { 4: 32, 6: 128 }[isIP(address)]
  if (!most || address.includes('%') || more.length > 0) return false
  // All addresses at once is no trust but the lack of it.
  return bits === undefined || (/^[1-9]\d{0,2}$/.test(bits) && Number(bits) <= most)
}

interface Setting {
  schema: z.ZodType
  default: string | undefined
  /** The default in words, where it depends on the machine. */
  default_text?: string
  about: string
}
const setting = <S extends z.ZodType>(schema: S, fallback: string, about: string) => ({
  schema,
  default: fallback,
  about,
})
/** One whose default depends on the machine; `default_text` says how. */
const computed = <S extends z.ZodType>(schema: S, fallback: string, default_text: string, about: string) => ({
  schema,
  default: fallback,
  default_text,
  about,
})
const optional = <S extends z.ZodType>(schema: S, about: string) => ({
  schema: schema.optional(),
  default: undefined,
  about,
})

// One entry a setting; its name in the environment is TUNERY_ and the name in capitals.
const settings = {
  port: setting(whole(0, 65_535), '8000', 'Port to listen on; 0 takes a free one.'),
  host: setting(text, '127.0.0.1', 'Address to listen on.'),
  cors_origins: setting(
    origins,
    '',
    'Origins whose pages may call the API from a browser, comma-separated; * is any. None: no CORS headers.',
  ),
  trusted_proxies: setting(
    networks,
    '',
    'Addresses and networks (CIDR) of proxies in front, comma-separated: only their X-Forwarded-… headers are believed. None: nobody’s.',
  ),
  max_connections: setting(whole(1, 1_000_000), '10000', 'Connections of clients at once; further ones are closed.'),
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
    'Folder of the base models.',
  ),
  default_tier: setting(text, 'enterprise', 'Tier of new accounts, the owner’s included.'),
  max_dataset_mb: setting(whole(1, 1_000_000), '2000', 'Largest dataset file, in MB.'),
  max_dataset_rows: setting(whole(1, 1_000_000_000), '1000000', 'Most rows in a dataset.'),
  huggingface_url: setting(
    z.url({ protocol: /^https?$/ }),
    'https://huggingface.co',
    'The Hugging Face Hub that datasets and base models are downloaded from.',
  ),
  huggingface_token: optional(
    z.string().regex(/^hf_\S+$/, "must begin with 'hf_'"),
    'Token for that hub: base models are downloaded with it, those whose licence its owner has accepted too, and exports are sent to repositories.',
  ),
  model_downloads: setting(
    z.enum(['any', 'operator', 'off']),
    'operator',
    'Who may have the service download base models of its catalogue: any account, keys with the scope operator, or nobody.',
  ),
  export_days: setting(
    whole(0, 36_500),
    '7',
    'Days for which the files of an export are kept; 0: until it is deleted.',
  ),
  parse_control_tokens: setting(
    truth,
    'false',
    'Whether text of prompts and of rows that spells a control token of the model (<|im_end|>) becomes that token, as with other servers; false: it is text.',
  ),
  max_adapter_mb: setting(whole(1, 1_000_000), '2000', 'Largest adapter that can be brought, in MB.'),
  min_free_disk_mb: setting(
    whole(0, 1_000_000),
    '500',
    'Uploads and jobs are refused while less than this is free on the data folder’s disk.',
  ),
  upstreams: optional(
    text,
    'Servers that serve base models in place of the own engine: the path of a JSON file or its text; see docs/upstreams.md.',
  ),
  max_waiting: setting(
    whole(0, 100_000),
    '256',
    'Requests that may wait for their turn, a model; more are refused with Retry-After.',
  ),
  idle_unload_seconds: setting(
    whole(0, 10_000_000),
    '3600',
    'A model that nobody asked for in this time leaves the engine’s memory; 0: never.',
  ),
  merged_memory_mb: computed(
    whole(0, 100_000_000),
    String(Math.round(os.totalmem() / 8e6)),
    'an eighth of the memory',
    'What merged copies of hot adapters may take together, in MB, in memory and on disk; 0: none is made.',
  ),
  merge_after_tokens: setting(
    whole(1, 1_000_000_000),
    '5000',
    'Output tokens in about five minutes from which an adapter gets a merged copy.',
  ),
  threads: computed(
    whole(1, 1024),
    String(os.availableParallelism()),
    'one per core',
    'Threads of the engine and of each trainer.',
  ),
  engine_options: setting(
    z.string().transform((value) => value.split(/\s+/).filter(Boolean)),
    '',
    'Further options of the engine’s command line, such as --no-speculation.',
  ),
  training_share: setting(
    whole(0, 80),
    '20',
    'Percent of the cores’ time that trainings have at the least while this machine’s engine answers; see docs/operate.md. 0: what answers leave.',
  ),
  trainer_processes: computed(
    whole(1, 64),
    String(Math.max(1, gpus())),
    'one per NVIDIA GPU, else 1',
    'Processes that train a job together, through torchrun: one a GPU.',
  ),
  checkpoint_seconds: setting(
    whole(1, 86_400),
    '30',
    'How often a training writes a checkpoint; a crash loses at most this much work.',
  ),
  log_level: setting(
    z.enum(['fatal', 'error', 'warn', 'info', 'debug', 'silent']),
    'info',
    'How much the server logs.',
  ),
  plans_file: optional(folder, 'JSON file of the operator’s own tiers and prices; see docs/operate.md.'),
  currency: setting(z.string().regex(/^[A-Z]{3}$/), 'USD', 'Currency of the prices.'),
  training_price: setting(z.coerce.number().min(0), '0', 'Price of a million trained tokens.'),
  input_price: setting(z.coerce.number().min(0), '0', 'Price of a million prompt tokens.'),
  output_price: setting(z.coerce.number().min(0), '0', 'Price of a million generated tokens.'),
  tracking: setting(
    z.enum(['none', 'tensorboard', 'mlflow', 'wandb']),
    'none',
    'Where the loss curves of jobs go out to; set-up brings what it takes.',
  ),
  tracking_url: optional(
    text,
    'Address of the MLflow or W&B server, or folder for TensorBoard. Keys stay in those tools’ own variables (WANDB_API_KEY, …).',
  ),
  tracking_project: setting(text, 'tunery', 'Name that the runs are grouped under.'),
  python: optional(text, 'Python that set-up builds the trainer’s environment with.'),
  gpu: setting(z.enum(['auto', 'cuda', 'vulkan', 'none']), 'auto', 'GPU build of the engine that set-up brings.'),
  database_url: optional(text, 'Postgres to use instead of SQLite. No effect yet.'),
  redis_url: optional(text, 'Redis for limits over several processes. No effect yet.'),
  storage_url: optional(text, 'S3-compatible storage for artifacts. No effect yet.'),
  ray_address: optional(text, 'Ray cluster to train on. No effect yet.'),
  webhook_allow: optional(
    text,
    'Comma-separated CIDR[:port] that webhooks may reach although private, IPv6 as [::1]/128:80.',
  ),
  max_waiting_jobs: setting(
    whole(1, 1_000_000),
    '100',
    'Jobs, and exports, of an account that may wait for their turn.',
  ),
  max_webhooks: setting(whole(1, 1000), '20', 'Most webhooks of an account.'),
  url: optional(
    z.url({ protocol: /^https?$/ }),
    'Service that ./tunery export asks, with its version (https://…/v1). Default: the one that runs on the data folder.',
  ),
  api_key: optional(text, 'Key that ./tunery export asks with. The service itself does not read it.'),
  secret_key_file: optional(
    folder,
    'File of the key that encrypts secrets at rest, made where there is none. Default: secret.key in the data folder.',
  ),
} satisfies Record<string, Setting>

type Settings = typeof settings
export type Config = { [K in keyof Settings]: z.output<Settings[K]['schema']> }

const envName = (name: string) => `TUNERY_${name.toUpperCase()}`
const withoutEffect = new Set(['database_url', 'redis_url', 'storage_url', 'ray_address'])

/** A setting that cannot be used, told so that the operator can mend it. */
export class ConfigError extends Error {}

/**
 * Reads every setting from the environment. Throws a ConfigError that lists all that is wrong, an unknown TUNERY_ name
 * included.
 */
export function readConfig(env: NodeJS.ProcessEnv): Config {
  const problems: string[] = []
  const known = new Map(Object.keys(settings).map((name) => [envName(name), name]))
  for (const name of Object.keys(env))
    if (name.startsWith('TUNERY_') && !known.has(name))
      problems.push(`${name} is not a setting; './tunery config' lists those there are.`)
  const config: Record<string, unknown> = {}
  for (const [name, { schema, default: fallback }] of Object.entries(settings)) {
    const given = env[envName(name)]
    const result = schema.safeParse(given === undefined || given === '' ? fallback : given)
    if (result.success) config[name] = result.data
    else
      problems.push(
        `${envName(name)} is ${secret.has(name) ? 'no such key' : `'${given}'`}: ${result.error.issues.map((issue) => issue.message).join('; ')}.`,
      )
  }
  if (problems.length > 0) throw new ConfigError(problems.join('\n'))
  return config as Config
}

/** Settings that were given but that nothing reads yet, so that the operator is told instead of surprised. */
export function settingsWithoutEffect(env: NodeJS.ProcessEnv): string[] {
  return [...withoutEffect].map(envName).filter((name) => env[name])
}

/** Every setting as documents tell of it, whatever this machine is. */
export const settingsReference = () =>
  Object.entries<Setting>(settings).map(([name, { schema, default: fallback, default_text, about }]) => ({
    name: envName(name),
    schema,
    default: default_text ?? (fallback ? `\`${fallback}\`` : ''),
    about,
  }))

/** A setting that is JSON text may hold keys of other servers, which are not for the screen. */
const withoutKeys = (value: unknown) =>
  typeof value === 'string' ? value.replace(/("api_key"\s*:\s*")(?:[^"\\]|\\.)*/g, '$1…') : value

/** Settings that are no one's to see. */
const secret = new Set(['huggingface_token', 'api_key'])

/** Every setting with its name in the environment, its default and its value in force. */
export function describeConfig(config: Config) {
  return Object.entries(settings).map(([name, { default: fallback, about }]) => ({
    name: envName(name),
    value: secret.has(name) && config[name as keyof Config] ? '…' : withoutKeys(config[name as keyof Config] ?? null),
    default: fallback ?? null,
    about,
  }))
}
