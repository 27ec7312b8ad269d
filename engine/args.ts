// The engine's command line.
import { existsSync } from 'node:fs'
import { resolve } from 'node:path'
import { fileURLToPath } from 'node:url'
import { parseArgs } from 'node:util'
import { shellWords } from '../lib/engine-choice.ts'
import { usableCores } from '../lib/usable-cores.ts'
import { type Address, parseAddress } from './http/server.ts'

export interface NamedFile {
  name: string
  path: string
}
export interface Args {
  listen: Address
  models: NamedFile[]
  /** With which the single model reads pictures. */
  projector: string | undefined
  /** Adapters of the single model. */
  adapters: NamedFile[]
  /** Projectors of adapters that have their own, by the adapter's name. */
  adapter_projectors: ReadonlyMap<string, string>
  api_key_file: string | undefined
  grace_ms: number
  threads: number
  lib: string
  parent_pipe: boolean
  slots: number
  /** Most memory for KV caches, in bytes; null: a share of the machine's. */
  cache_bytes: number | null
  speculation: boolean
  /** Serve weights in eight bits where that is faster. */
  eight_bits: boolean
  /** Answer with the weights that were loaded until they are unloaded. */
  fixed_weights: boolean
  /** Disk space that copies of weights leave free. */
  min_free_bytes: number
  /** Keep keys and values in eight bits where our own kernels read them. */
  eight_bit_cache: boolean
  /** Compute with our own kernels where they are installed and run on this processor. */
  kernels: boolean
  /** Parse control tokens in callers' messages as control tokens instead of text. */
  parse_control_tokens: boolean
  /** The Python interpreter with the vLLM that computes bases whose checkpoint is named; null: none. */
  vllm: string | null
  /** More options of `vllm serve`. */
  vllm_options: string[]
  /** Trainings may put vLLM to sleep. */
  vllm_sleep: boolean
}

export const usage =
  'node engine/main.ts [--listen HOST:PORT | unix:/path.sock] [--model NAME=FILE.gguf]... ' +
  '[--projector FILE.gguf] [--adapter NAME=FILE.gguf]... [--adapter-projector NAME=FILE.gguf]... ' +
  '[--api-key-file FILE] [--grace-seconds N] [--threads N] [--lib DIR] [--parent-pipe] [--slots N] [--cache-mb N] ' +
  '[--min-free-disk-mb N] [--eight-bit-cache] [--no-speculation] [--no-eight-bits] [--fixed-weights] [--no-kernels] ' +
  '[--parse-control-tokens] [--vllm PYTHON] [--vllm-options TEXT] [--vllm-sleep]'

const listenDefault = '127.0.0.1:8000'
const graceSecondsDefault = 10
const slotsDefault = 32
const minFreeDiskMbDefault = 1000

/** Throws an Error for the user. */
export function parseCommandLine(argv: string[]): Args {
  const { values } = parseArgs({
    args: argv,
    options: {
      listen: { type: 'string' },
      model: { type: 'string', multiple: true, default: [] },
      projector: { type: 'string' },
      adapter: { type: 'string', multiple: true, default: [] },
      'adapter-projector': { type: 'string', multiple: true, default: [] },
      'api-key-file': { type: 'string' },
      'grace-seconds': { type: 'string' },
      threads: { type: 'string' },
      lib: { type: 'string' },
      'parent-pipe': { type: 'boolean', default: false },
      slots: { type: 'string' },
      'cache-mb': { type: 'string' },
      'no-speculation': { type: 'boolean', default: false },
      'no-eight-bits': { type: 'boolean', default: false },
      'eight-bit-cache': { type: 'boolean', default: false },
      'fixed-weights': { type: 'boolean', default: false },
      'min-free-disk-mb': { type: 'string' },
      'no-kernels': { type: 'boolean', default: false },
      'parse-control-tokens': { type: 'boolean', default: false },
      vllm: { type: 'string' },
      'vllm-options': { type: 'string', default: '' },
      'vllm-sleep': { type: 'boolean', default: false },
    },
  })
  const listen = parseAddress(values.listen ?? listenDefault)
  const models = values.model.map((text) => parseNamed('--model', text))
  // Only the server can load models later, over the unix socket.
  if ('port' in listen && models.length === 0)
    throw new Error('--model is missing: a server on a port serves the files that it is started with.')
  if (values.adapter.length > 0 && models.length !== 1)
    throw new Error('--adapter needs exactly one --model, the base of the adapters.')
  if (values.projector !== undefined && models.length !== 1)
    throw new Error('--projector needs exactly one --model, which reads pictures with it.')
  const adapters = values.adapter.map((text) => parseNamed('--adapter', text))
  const projectors = values['adapter-projector'].map((text) => parseNamed('--adapter-projector', text))
  const stranger = projectors.find(({ name }) => !adapters.some((adapter) => adapter.name === name))
  if (stranger) throw new Error(`--adapter-projector names '${stranger.name}', which no --adapter has.`)
  if ('path' in listen && values['api-key-file'] !== undefined)
    throw new Error('--api-key-file is for a server on a port; only its owner can open a unix socket.')
  const cores = usableCores()
  return {
    listen,
    models,
    projector: values.projector && resolve(values.projector),
    adapters,
    adapter_projectors: new Map(projectors.map(({ name, path }) => [name, resolve(path)])),
    api_key_file: values['api-key-file'],
    grace_ms: 1000 * positive('--grace-seconds', values['grace-seconds'], graceSecondsDefault),
    // With more threads than cores, the library's spin barriers hang.
    threads: Math.min(positive('--threads', values.threads, cores), cores),
    lib: values.lib ?? findLibrary(),
    parent_pipe: values['parent-pipe'],
    slots: Math.min(positive('--slots', values.slots, slotsDefault), 64),
    cache_bytes: values['cache-mb'] === undefined ? null : 1e6 * positive('--cache-mb', values['cache-mb'], 1),
    speculation: !values['no-speculation'],
    eight_bits: !values['no-eight-bits'],
    eight_bit_cache: values['eight-bit-cache'],
    fixed_weights: values['fixed-weights'],
    min_free_bytes: 1e6 * positive('--min-free-disk-mb', values['min-free-disk-mb'], minFreeDiskMbDefault),
    kernels: !values['no-kernels'],
    parse_control_tokens: values['parse-control-tokens'],
    vllm: values.vllm ?? null,
    vllm_options: shellWords(values['vllm-options']),
    vllm_sleep: values['vllm-sleep'],
  }
}

function parseNamed(option: string, text: string): NamedFile {
  const at = text.indexOf('=')
  if (at < 1 || at === text.length - 1) throw new Error(`${option} takes NAME=FILE.gguf, not '${text}'.`)
  return { name: text.slice(0, at), path: text.slice(at + 1) }
}

function positive(option: string, text: string | undefined, fallback: number): number {
  if (text === undefined) return fallback
  const number = Number(text)
  if (!Number.isInteger(number) || number < 1)
    throw new Error(`${option} takes a whole number from 1 on, not '${text}'.`)
  return number
}

/** The library folder: from `npm run setup`, or in a bundle from an installed npm package. */
function findLibrary(): string {
  const root = new URL('../', import.meta.url)
  const fromSetup = fileURLToPath(new URL('.local/llama/lib', root))
  const platform = `${process.platform}-${process.arch}`
  const installed = [`${platform}-cuda`, platform].map((name) =>
    fileURLToPath(new URL(`node_modules/@node-llama-cpp/${name}/bins/${name}`, root)),
  )
  return [fromSetup, ...installed].find((folder) => existsSync(folder)) ?? fromSetup
}
