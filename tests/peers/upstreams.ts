// Starts peers as upstreams of the service.
import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import path from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { freePort } from '../../bench/support/free-port.ts'

const root = path.resolve(import.meta.dirname, '../..')
export const base = 'HuggingFaceTB/SmolLM2-135M-Instruct'
const modelDir = path.join(root, '.local/models', base)

export interface Upstream {
  url: string
  /** The value of a Prometheus metric, summed over labels. */
  metric(name: string): Promise<number>
  kill(): Promise<void>
  /** Starts it on the same port. */
  restart(): Promise<void>
}

async function start(
  command: string,
  args: (port: number) => string[],
  env: Record<string, string>,
  limit_s: number,
): Promise<Upstream> {
  const port = await freePort()
  const url = `http://127.0.0.1:${port}`
  let child: ChildProcess
  let output = ''
  async function launch() {
    // Own process group, as vLLM has workers that must end with it.
    child = spawn(command, args(port), {
      env: { ...process.env, ...env },
      stdio: ['ignore', 'pipe', 'pipe'],
      detached: true,
    })
    for (const stream of [child.stdout!, child.stderr!])
      stream.on('data', (data) => {
        output = `${output}${data}`.slice(-5000)
      })
    for (const end = Date.now() + limit_s * 1000; ; await sleep(100)) {
      if (child.exitCode !== null || Date.now() > end) throw new Error(`${command} did not start:\n${output}`)
      if (
        await fetch(`${url}/health`).then(
          ({ ok }) => ok,
          () => false,
        )
      )
        return
    }
  }
  async function kill() {
    if (child.exitCode !== null || child.signalCode !== null) return
    const ended = once(child, 'exit')
    process.kill(-child.pid!, 'SIGKILL')
    await ended
  }
  process.once(
    'exit',
    () => child.exitCode === null && child.signalCode === null && process.kill(-child.pid!, 'SIGKILL'),
  )
  await launch()
  return {
    url,
    kill,
    restart: launch,
    async metric(name) {
      const text = await (await fetch(`${url}/metrics`)).text()
      const matches = [...text.matchAll(new RegExp(`^${name}(?:\\{[^}]*\\})? (\\S+)$`, 'gm'))]
      if (matches.length === 0) throw new Error(`${url} has no metric ${name}`)
      return matches.reduce((sum, [, value]) => sum + Number(value), 0)
    },
  }
}

export const startLlamaServer = () =>
  start(
    path.join(root, '.local/peers/llama.cpp/build/bin/llama-server'),
    (port) => [
      '-m',
      path.join(modelDir, 'model.gguf'),
      '-np',
      '4',
      '-c',
      '16384',
      '-t',
      '1',
      '--port',
      String(port),
      '--no-webui',
      '--metrics',
      '-a',
      base,
    ],
    {},
    60,
  )

export const startVllm = () =>
  start(
    path.join(root, '.local/vllm/bin/vllm'),
    (port) => [
      ...[
        'serve',
        path.join(modelDir, 'hf'),
        '--served-model-name',
        base,
        '--port',
        String(port),
        '--host',
        '127.0.0.1',
      ],
      ...['--dtype', 'bfloat16', '--max-model-len', '2048', '--enforce-eager'],
      ...['--enable-lora', '--max-lora-rank', '64', '--max-loras', '4'],
    ],
    {
      VLLM_CPU_KVCACHE_SPACE: '1',
      VLLM_ALLOW_RUNTIME_LORA_UPDATING: 'true',
      HF_HUB_OFFLINE: '1',
      VLLM_NO_USAGE_STATS: '1',
    },
    240,
  )

/** The service's setting for these upstreams. */
export const upstreams = (
  ...upstreams: { model: string; url: string; kind: 'vllm' | 'openai'; upstream_model?: string; adapters?: boolean }[]
) => ({ TUNERY_UPSTREAMS: JSON.stringify(upstreams) })

/** Waits until a condition holds; throws after this many seconds. */
export async function until(what: string, condition: () => Promise<boolean>, limit_s = 30): Promise<void> {
  for (const end = Date.now() + limit_s * 1000; Date.now() < end; await sleep(50)) if (await condition()) return
  throw new Error(`waited ${limit_s} s for: ${what}`)
}
