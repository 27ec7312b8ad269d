// Differences between engine and trainer for good and broken models of every method: `npm run bench -- comparison`. The
// bounds in server/features/serving/fidelity/compare.ts are chosen from these.
import { execFileSync } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { compare, type Probe, readProbe, type Scores } from '../server/features/serving/fidelity/compare.ts'
import { startEngine } from '../tests/process/engine/engine-process.ts'
import { startService } from './support/service.ts'

const root = path.resolve(import.meta.dirname, '..')
const base = 'HuggingFaceTB/SmolLM2-135M-Instruct'
const baseGguf = path.join(root, '.local/models', base, 'model.gguf')
const folder = mkdtempSync(path.join(os.tmpdir(), 'tunery-comparison-'))
const upload = async (
  api: (method: string, route: string, body?: unknown) => Promise<{ id: string }>,
  rows: string,
) => {
  const form = new FormData()
  form.set('file', new Blob([rows]), 'rows.jsonl')
  return (await api('POST', '/datasets/', form)).id
}

/** Writes a broken copy of an adapter's file, with another scale or another order of layers. */
const breakAdapter = (gguf: string, how: string): string => {
  const out = path.join(folder, `${path.basename(path.dirname(gguf))}-${how}.gguf`)
  execFileSync(path.join(root, '.local/python/bin/python'), ['-m', 'bench.support.break_gguf', gguf, out, how], {
    cwd: root,
  })
  return out
}

async function main() {
  const service = await startService()
  const rows = readFileSync(path.join(root, 'examples/ticket-triage.jsonl'), 'utf8').split('\n').slice(0, 80).join('\n')
  // The same questions with answers of other rows.
  const lines = rows
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line))
  const shuffled = lines
    .map((row, index) =>
      JSON.stringify({
        messages: [row.messages[0], ...row.messages.slice(1, -1), lines[(index + 97) % lines.length].messages.at(-1)],
      }),
    )
    .join('\n')
  const datasets = { good: await upload(service.api, rows), other: await upload(service.api, shuffled) }
  const engine = await startEngine()
  const post = async (route: string, body: object) => {
    const { status, text, json } = await engine.ask('POST', route, body)
    if (status !== 200) throw new Error(text)
    return json
  }
  await post('/internal/load_model', { name: 'base', path: baseGguf })
  const score = async (model: string, probe: Probe): Promise<Scores> =>
    post('/internal/score', {
      model,
      rows: probe.rows.map(({ prompt, tokens, targets }) => ({ prompt, tokens, targets })),
    })

  async function train(method: string, dataset_id: string, rate?: number): Promise<string> {
    const config = { method, training_config: { epochs: 1, ...(rate && { learning_rate: rate }) } }
    const { id } = await service.api('POST', '/fine-tuning/jobs', { model_id: base, dataset_id, config })
    for (;;) {
      const job = await service.api('GET', `/fine-tuning/jobs/${id}`)
      if (job.status === 'completed') return job.model
      if (job.status === 'failed') throw new Error(job.error.message)
      await new Promise((resolve) => setTimeout(resolve, 500))
    }
  }
  const show = async (what: string, name: string, probe: Probe) => {
    const { change, difference, agrees } = compare(probe, await score(name, probe), await score('base', probe))
    console.log(
      `${what.padEnd(48)} change ${change.toFixed(3)}, difference ${difference.toFixed(3)} ` +
        `(${(difference / change).toFixed(2)}): ${agrees ? 'agrees' : 'refused'}`,
    )
  }

  try {
    for (const [method, rate] of [['lora'], ['lora', 2e-5], ['qlora'], ['qlora', 2e-5], ['full'], ['full', 2e-6]] as [
      string,
      number?,
    ][]) {
      const title = `${method}${rate ? ` at ${rate}` : ''}`
      const mine = path.join(service.dataDir, 'models', await train(method, datasets.good, rate))
      const other = path.join(service.dataDir, 'models', await train(method, datasets.other, rate))
      const probe = await readProbe(path.join(mine, 'probe.json'))
      const file = method === 'full' ? 'model.gguf' : 'adapter.gguf'
      const load = async (name: string, gguf: string) =>
        method === 'full'
          ? post('/internal/load_model', { name, path: gguf })
          : post('/v1/load_lora_adapter', { lora_name: name, lora_path: gguf, base_model_name: 'base' })
      await load(`${title} good`, path.join(mine, file))
      await show(`${title}, as trained`, `${title} good`, probe)
      await show(`${title}, the base alone`, 'base', probe)
      await load(`${title} other`, path.join(other, file))
      await show(`${title}, of other answers`, `${title} other`, probe)
      if (method === 'full') continue
      for (const how of ['half', 'double', 'layers']) {
        await load(`${title} ${how}`, breakAdapter(path.join(mine, file), how))
        await show(
          `${title}, ${{ half: 'half the scale', double: 'twice the scale', layers: 'layers in another order' }[how]}`,
          `${title} ${how}`,
          probe,
        )
      }
    }
  } finally {
    await engine.stop()
    await service.stop()
    rmSync(folder, { recursive: true, force: true })
  }
}

await main()
