// `npm run bench -- NAME [options]`: measures Tunery against a peer or a bound. Nothing else should run on the machine.
import { spawnSync } from 'node:child_process'
import path from 'node:path'

const root = path.resolve(import.meta.dirname, '..')
const python = path.join(root, '.local/python/bin/python')
/** Shapes of published models (bench/serving/scenarios/added-base.ts). */
const shapes = ['qwen3-0.6b', 'gemma3-1b', 'qwen3.5-0.8b', 'mixture-8x']
const benches: Record<string, [command: string, ...args: string[]]> = {
  serving: [process.execPath, 'bench/serving/main.ts'],
  shapes: [process.execPath, 'bench/serving/main.ts', '--only', shapes.join(',')],
  prompt: [process.execPath, 'bench/serving/main.ts', '--only', shapes.map((shape) => `prompt-${shape}`).join(',')],
  agent: [process.execPath, 'bench/serving/main.ts', '--only', 'agent'],
  gateway: [process.execPath, 'bench/serving/main.ts', '--only', 'gateway'],
  pictures: [process.execPath, 'bench/serving/main.ts', '--only', 'pictures', '--rounds', '2'],
  redis: [process.execPath, 'bench/redis.ts'],
  training: [python, '-m', 'bench.training.run'],
  'training-gpu': [python, '-m', 'bench.training.gpu'],
  preferences: [python, '-m', 'bench.training.preferences'],
  vision: [python, '-m', 'bench.training.vision'],
  reinforcement: [process.execPath, 'bench/reinforcement/main.ts'],
  validation: [python, '-m', 'bench.validation'],
  upload: [process.execPath, 'bench/upload.ts'],
  comparison: [process.execPath, 'bench/comparison.ts'],
  exports: [process.execPath, 'bench/exports/main.ts'],
  beside: [process.execPath, 'bench/beside/main.ts'],
  busy: [process.execPath, 'bench/busy/main.ts'],
  steps: [process.execPath, 'bench/steps/main.ts'],
  attention: [process.execPath, 'bench/steps/attention.ts'],
  batches: [process.execPath, 'bench/batches.ts'],
  tracing: [process.execPath, 'bench/tracing.ts'],
  servers: [process.execPath, 'bench/scale/servers.ts'],
  streams: [process.execPath, 'bench/scale/streams.ts'],
  growth: [process.execPath, 'bench/growth/main.ts'],
  lists: [process.execPath, 'bench/scale/lists.ts'],
  'first-minute': [process.execPath, 'bench/first-minute.ts'],
  fidelity: [process.execPath, 'bench/fidelity.ts'],
  idle: [process.execPath, 'bench/idle/main.ts'],
  capacity: [process.execPath, 'bench/capacity/main.ts'],
}

const [name, ...options] = process.argv.slice(2)
const bench = benches[name ?? '']
if (!bench) {
  console.error(`Usage: npm run bench -- ${Object.keys(benches).join(' | ')} [options]`)
  process.exit(2)
}
const [command, ...args] = bench
/** Peers that a benchmark needs; installed on first use. */
const peers: Record<string, string> = {
  serving: 'llama-server,portkey,gemma3',
  gateway: 'portkey',
  pictures: 'llama-server',
  shapes: 'llama-server,gemma3',
  prompt: 'llama-server,gemma3',
  agent: 'llama-server',
  busy: 'llama-server',
}
if (peers[name!]) {
  const setup = spawnSync(process.execPath, [path.join(root, 'scripts/setup.mjs'), '--with', peers[name!]!], {
    cwd: root,
    stdio: 'inherit',
  })
  if (setup.status !== 0) process.exit(1)
}
const { status } = spawnSync(command, [...args, ...options], { cwd: root, stdio: 'inherit' })
process.exit(status ?? 1)
