// Measures every kind of export of one model: size, time, memory, and difference from the trainer's answers. Prints a
// Markdown table. `npm run bench -- exports [format]`
import { readFileSync, statSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import type { Export } from '../../contract/exports.ts'
import { watchMemory } from '../support/memory.ts'
import { startService } from '../support/service.ts'

const root = path.resolve(import.meta.dirname, '../..')
const base = 'HuggingFaceTB/SmolLM2-135M-Instruct'
const weights = path.join(root, '.local/models', base, 'hf/model.safetensors')
const overhead_mb = 500

const [only] = process.argv.slice(2)
const cases: [title: string, body: { format: string; quantization?: string; merge?: boolean }][] = [
  ['huggingface, as the base', { format: 'huggingface' }],
  ['huggingface, fp16', { format: 'huggingface', quantization: 'fp16' }],
  ['huggingface, adapter alone', { format: 'huggingface', merge: false }],
  ['gguf, adapter alone, F16', { format: 'gguf', merge: false }],
  ...['F16', 'Q8_0', 'Q6_K', 'Q5_K_M', 'Q4_K_M', 'Q4_0', 'IQ4_NL', 'Q3_K_M', 'Q2_K', 'IQ2_M', 'IQ1_S'].map(
    (quantization): (typeof cases)[number] => [`gguf, ${quantization}`, { format: 'gguf', quantization }],
  ),
  ...['fp32', 'fp16', 'int8', 'int4'].map((quantization): (typeof cases)[number] => [
    `onnx, ${quantization}`,
    { format: 'onnx', quantization },
  ]),
]

/** Trains on the demo's task with some held-out rows, which the exports are checked on. Returns the model. */
async function train(service: Awaited<ReturnType<typeof startService>>): Promise<string> {
  const form = new FormData()
  form.set('file', new Blob([readFileSync(path.join(root, 'examples/ticket-triage.jsonl'))]), 'rows.jsonl')
  const { id: dataset_id } = await service.api('POST', '/datasets/', form)
  const config = { training_config: { epochs: 2 }, evaluation_config: { validation_split: 0.05 } }
  const { id } = await service.api('POST', '/fine-tuning/jobs', { model_id: base, dataset_id, config })
  await waitForEnd(service, `/fine-tuning/jobs/${id}`)
  const { status, model, error } = await service.api('GET', `/fine-tuning/jobs/${id}`)
  if (status !== 'completed') throw new Error(`the training is ${status}: ${error?.message}`)
  return model
}

/** Waits for the end of a job or export: its event stream ends with it. */
async function waitForEnd(service: Awaited<ReturnType<typeof startService>>, route: string): Promise<void> {
  const { body } = await fetch(`${service.url}${route}/events`, { headers: { authorization: `Bearer ${service.key}` } })
  for await (const _ of body!);
}

async function measure(service: Awaited<ReturnType<typeof startService>>, model: string, body: object) {
  const memory = watchMemory(service.pid)
  const started = performance.now()
  const { id } = (await service.api('POST', '/exports', { model, ...body })) as Export
  await waitForEnd(service, `/exports/${id}`)
  const seconds = (performance.now() - started) / 1000
  const peak_mb = memory.end() / 1e6
  const exported = (await service.api('GET', `/exports/${id}`)) as Export
  await service.api('DELETE', `/exports/${id}`)
  return { made: exported, seconds, peak_mb }
}

function describeMachine(): string {
  const flags = /^flags\s*:(.*)$/m.exec(readFileSync('/proc/cpuinfo', 'utf8'))?.[1]?.split(' ') ?? []
  const vectors = flags.filter((flag) => /^(avx|amx)/.test(flag)).sort()
  const memory_gib = Math.round(os.totalmem() / 2 ** 30)
  return `${os.availableParallelism()} cores, ${memory_gib} GiB, ${vectors.join(' ') || 'vector flags unknown'}`
}

const digits = (value: number | undefined, places: number) => (value === undefined ? '–' : value.toFixed(places))
// process.exit runs the exit handler that kills the service.
for (const signal of ['SIGTERM', 'SIGINT'] as const) process.on(signal, () => process.exit(1))
const service = await startService()
let failed = 0
try {
  const max_mb = statSync(weights).size / 1e6 + overhead_mb
  console.log(
    `${describeMachine()}. Memory limit per export: ${max_mb.toFixed(0)} MB (base weights and ${overhead_mb} MB).\n`,
  )
  const model = await train(service)
  // The first export of a model also computes the trainer's answers, so it is measured separately.
  const first = await measure(service, model, { format: 'gguf', merge: false })
  console.log(
    "The first export of a model also computes the trainer's answers: " +
      `${first.seconds.toFixed(1)} s, ${first.peak_mb.toFixed(0)} MB, for the adapter alone.`,
  )
  const { prompts, tokens } = first.made.check ?? { prompts: 0, tokens: 0 }
  console.log(`Compared are ${prompts} answers, ${tokens} tokens.\n`)
  console.log(
    '| | size, MB | seconds | memory, MB | same answers | matching tokens | difference, nats |\n' +
      '|---|---|---|---|---|---|---|',
  )
  for (const [title, body] of cases) {
    if (only && only !== body.format) continue
    const { made, seconds, peak_mb } = await measure(service, model, body)
    const { check, files, status, error } = made
    const size_mb = files[0] && files[0].size_bytes / 1e6
    const figures = [
      digits(size_mb, size_mb! < 20 ? 1 : 0),
      seconds.toFixed(1),
      peak_mb.toFixed(0),
      digits(check?.identical, 2),
    ]
    console.log(
      `| ${[title, ...figures, digits(check?.matching_tokens, 2), digits(check?.log_probability_difference, 4)].join(
        ' | ',
      )} |`,
    )
    if (status !== 'ready') console.error(`${title} is ${status}: ${error?.message}`)
    if (peak_mb > max_mb) console.error(`${title} took ${peak_mb.toFixed(0)} MB, more than ${max_mb.toFixed(0)}`)
    if (status !== 'ready' || peak_mb > max_mb) failed++
  }
} finally {
  await service.stop()
}
process.exit(failed > 0 ? 1 : 0)
