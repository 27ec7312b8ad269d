// The two sides: the whole service with keys, limits and metering, and a bare llama-server on the same model file.
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { endWithThisProcess } from '../support/child.ts'
import { freePort } from '../support/free-port.ts'
import { startService } from '../support/service.ts'
import type { Target } from './job.ts'

export const root = path.resolve(import.meta.dirname, '../..')
export const model = 'HuggingFaceTB/SmolLM2-135M-Instruct'
export const gguf = path.join(root, '.local/models', model, 'model.gguf')
export const threads = os.availableParallelism()

/** The weights that llama-server can be given: the file, and the eight-bit copy that our engine may have made of it. */
export function peerWeights(): string[] {
  const copy = gguf.replace(/\.gguf$/, '.eight-bits.gguf')
  return existsSync(copy) ? [gguf, copy] : [gguf]
}

/** The same sampling parameters for both sides. */
export const sampling = {
  temperature: 0.7,
  top_p: 0.9,
  top_k: 50,
  min_p: 0,
  stream: true,
  stream_options: { include_usage: true },
}
/** Forbids the model's end tokens, so that each answer has the requested length. */
export const noEndToken = { logit_bias: { '0': -100, '2': -100 } }

async function startProgram(name: string, ...args: string[]) {
  const child = spawn(process.execPath, [path.join(import.meta.dirname, name), ...args], {
    stdio: ['pipe', 'pipe', 'inherit'],
  })
  const [line] = (await once(child.stdout, 'data')) as [Buffer]
  return { url: String(line).trim(), stop: () => child.kill() }
}

/** Starts an engine that answers at once. */
export const startMock = () => startProgram('mock-engine.ts')

/** Starts a relay with nothing in it. */
export const startBareRelay = (to: string) => startProgram('bare-relay.ts', to)

export interface Side extends Target {
  /** The side's main process. */
  pid: number
  stop(): Promise<void>
}

/** Settings that pass additional options to the engine's command line. */
export const engineOptions = (...options: string[]): Record<string, string> =>
  options.length > 0 ? { TUNERY_ENGINE_OPTIONS: options.join(' ') } : {}

export async function startOurs(settings: Record<string, string> = {}, dataDir?: string) {
  const service = await startService({ TUNERY_THREADS: String(threads), ...settings }, dataDir)
  const target: Side = {
    name: 'ours',
    url: new URL(service.url).origin,
    path: '/v1/chat/completions',
    headers: { authorization: `Bearer ${service.key}` },
    model,
    extra: {},
    pid: service.pid,
    stop: () => service.stop(),
  }
  return { ...target, service }
}
export type Ours = Awaited<ReturnType<typeof startOurs>>

/** How llama-server computes. Its defaults: as many threads as cores, flash attention, 512 tokens at once. */
export interface PeerForm {
  weights: string
  threads: number
  flash_attention: 'on' | 'off'
  /** Tokens that are computed at once. */
  ubatch: number
}

export interface PeerOptions extends Partial<PeerForm> {
  adapters?: string[]
  /** Projector of a model that reads pictures. */
  projector?: string
}

/**
 * llama-server's flags for `slots` parallel requests of up to `context` tokens each. Continuous batching and prompt
 * caching are on by default.
 */
export function llamaFlags(slots: number, context: number, port: number, options: PeerOptions = {}): string[] {
  const { adapters = [], projector } = options
  const form = formOf(options)
  const lora = adapters.length > 0 ? ['--lora', adapters.join(','), '--lora-init-without-apply'] : []
  return [
    ...['-m', form.weights],
    ...(projector ? ['--mmproj', projector] : []),
    ...['-np', String(slots)],
    ...['-c', String(slots * context)],
    ...['-t', String(form.threads)],
    ...['-fa', form.flash_attention],
    ...['-ub', String(form.ubatch)],
    ...['--port', String(port)],
    '--no-webui',
    ...['-lv', '1'],
    ...lora,
  ]
}

const formOf = (options: PeerOptions): PeerForm => ({
  weights: options.weights ?? gguf,
  threads: options.threads ?? threads,
  flash_attention: options.flash_attention ?? 'on',
  ubatch: options.ubatch ?? 512,
})

function formText(options: PeerOptions): string {
  const form = formOf(options)
  return (
    `peer: ${path.basename(form.weights)}, ${form.threads} threads, flash attention ${form.flash_attention}, ` +
    `ubatch ${form.ubatch}`
  )
}

export const llamaServer = path.join(root, '.local/peers/llama.cpp/build/bin/llama-server')

export async function startLlamaServer(
  slots: number,
  context = 1024,
  options: PeerOptions = {},
): Promise<Side & { form: string }> {
  const port = await freePort()
  const child = spawn(llamaServer, llamaFlags(slots, context, port, options), { stdio: ['ignore', 'ignore', 'pipe'] })
  endWithThisProcess(child)
  let stderr = ''
  child.stderr.on('data', (data) => {
    stderr = `${stderr}${data}`.slice(-2000)
  })
  let stopped = false
  child.once('exit', (status, signal) => {
    if (!stopped) console.error(`llama-server ended unexpectedly (${signal ?? status}):\n${stderr}`)
  })
  const url = `http://127.0.0.1:${port}`
  const ended = once(child, 'exit')
  await waitUntilHealthy(url, () => child.exitCode !== null).catch((error: Error) => {
    throw new Error(`${error.message}:\n${stderr}`)
  })
  return {
    name: 'llama-server',
    url,
    path: '/v1/chat/completions',
    headers: {},
    model,
    extra: {},
    pid: child.pid!,
    form: formText(options),
    async stop() {
      stopped = true
      child.kill('SIGTERM')
      await ended
    },
  }
}

export async function waitUntilHealthy(url: string, gone: () => boolean): Promise<void> {
  for (const end = performance.now() + 60_000; performance.now() < end; ) {
    if (gone()) throw new Error(`${url} ended before it was ready`)
    if (
      await fetch(`${url}/health`).then(
        ({ ok }) => ok,
        () => false,
      )
    )
      return
    await new Promise((resolve) => setTimeout(resolve, 10))
  }
  throw new Error(`${url} was not ready within a minute`)
}
