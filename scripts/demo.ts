// `npm run demo`: trains and serves a model from the examples through the public API. `-- --exit` ends it when done.
import { readFileSync } from 'node:fs'
import path from 'node:path'
import { parseArgs } from 'node:util'
import { createProgress } from './demo/progress.ts'
import { isRight, readRows, score } from './demo/score.ts'
import { call, events, type Service, startService } from './demo/service.ts'

const examples = path.resolve(import.meta.dirname, '../examples')
const base = 'HuggingFaceTB/SmolLM2-135M-Instruct'
const name = 'ticket-triage'

const { values: options } = parseArgs({ options: { exit: { type: 'boolean', default: false } } })
const started = Date.now()
const title = (text: string) => console.log(`\n${process.stdout.isTTY ? `\x1b[1m${text}\x1b[0m` : text}`)

async function main(service: Service): Promise<void> {
  title('1. Upload the examples')
  const form = new FormData()
  form.set('name', name)
  form.set('format', 'jsonl')
  form.set('file', new Blob([readFileSync(path.join(examples, 'ticket-triage.jsonl'))]), 'ticket-triage.jsonl')
  const dataset = await call<{ id: string; rows: number }>(service, 'POST', '/datasets/', form)
  const check = await call<{ valid: boolean; errors?: string[]; avg_tokens_per_sample: number }>(
    service,
    'POST',
    `/datasets/${dataset.id}/validate`,
  )
  if (!check.valid) throw new Error(`the examples are not valid: ${check.errors?.join('; ')}`)
  console.log(`  ${dataset.rows} rows, valid, ${check.avg_tokens_per_sample} tokens each on average`)

  title(`2. Fine-tune ${base} with LoRA`)
  const training = Date.now()
  const job = await call<{ id: string }>(service, 'POST', '/fine-tuning/jobs', {
    model_id: base,
    dataset_id: dataset.id,
  })
  const progress = createProgress(process.stdout)
  for await (const event of events(service, job.id)) progress.show(event)
  const result = await call<{
    status: string
    model: string
    error: { message: string } | null
    metrics: { train_loss?: number }
  }>(service, 'GET', `/fine-tuning/jobs/${job.id}`)
  if (result.status !== 'completed')
    throw new Error(`the job is ${result.status}: ${result.error?.message ?? 'no reason was given'}`)
  const train_seconds = (Date.now() - training) / 1000

  title(`3. Deploy the result as ${name}`)
  const deployment = await call<{ status: string }>(service, 'POST', '/deployments', { model: result.model, name })
  if (deployment.status !== 'ready') throw new Error(`the deployment is ${deployment.status}`)
  console.log('  ready')

  const rows = readRows(path.join(examples, 'ticket-triage.heldout.jsonl'))
  title(`4. Ask both about ${rows.length} tickets that were never trained on`)
  const showCount = (model: string) => (count: number) => {
    if (process.stdout.isTTY)
      process.stdout.write(`\r\x1b[K  ${model}: ${count} of ${rows.length}${count === rows.length ? '\n' : ''}`)
  }
  const before = await score(service, base, rows, showCount('base'))
  const after = await score(service, name, rows, showCount('tuned'))
  for (const index of [0, 1, 2, 3]) {
    const { prompt, expected } = rows[index]!
    const mark = (answer: string) => `${isRight(answer, expected) ? '✓' : '✗'} ${oneLine(answer)}`
    console.log(
      `\n  ticket  ${oneLine(prompt.at(-1)!.content)}\n  base    ${mark(before.answers[index]!)}\n` +
        `  tuned   ${mark(after.answers[index]!)}`,
    )
  }
  console.log(
    `\n  Whole answers right: base ${percent(before.share)}, tuned ${percent(after.share)} of ${rows.length}.`,
  )

  if (options.exit) {
    const seconds = (value: number) => Number(value.toFixed(1))
    return console.log(
      `\n${JSON.stringify({
        base_score: before.share,
        tuned_score: after.share,
        train_seconds: seconds(train_seconds),
        total_seconds: seconds((Date.now() - started) / 1000),
      })}`,
    )
  }
  title('The service keeps running. Try it:')
  const body = JSON.stringify({ model: name, messages: rows[0]!.prompt, temperature: 0 })
  console.log(`
  base URL  ${service.url}
  key       ${service.key}

  curl ${service.url}/chat/completions -H 'Authorization: Bearer ${service.key}' \\
    -H 'Content-Type: application/json' -d '${body.replaceAll("'", "'\\''")}'

Ctrl-C stops it and removes the demo's data. \`npm start\` runs a permanent service.`)
  await service.ended
}

const percent = (share: number) => `${Math.round(share * 100)} %`

function oneLine(text: string): string {
  const line = text.replaceAll(/\s+/g, ' ').trim()
  return line.length > 110 ? `${line.slice(0, 109)}…` : line
}

// npm forwards the SIGINT that the terminal has already sent to this script: two within this time are one.
const duplicateSignal_ms = 300

/** Resolves at the first signal to end; `again` is called at a later Ctrl-C. */
function waitForSignal(onSecondSignal: () => void): Promise<'interrupted'> {
  return new Promise((resolve) => {
    let first_at: number | undefined
    const onSignal = (signal: NodeJS.Signals) => {
      if (first_at !== undefined)
        return void (signal === 'SIGINT' && performance.now() - first_at > duplicateSignal_ms && onSecondSignal())
      first_at = performance.now()
      if (process.stdout.isTTY) console.log('\nStopping. Press Ctrl-C again to stop at once.')
      resolve('interrupted')
    }
    for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.on(signal, () => onSignal(signal))
  })
}

let service: Service | undefined
// Installed before the service starts, so that the service is always stopped.
const interrupted = waitForSignal(() => {
  process.exitCode = 130
  service?.kill()
})
try {
  service = await startService()
  if ((await Promise.race([main(service), interrupted])) === 'interrupted' && options.exit) process.exitCode = 130
} catch (error) {
  console.error(`\nThe demo failed: ${(error as Error).message}`)
  process.exitCode = 1
} finally {
  await service?.stop()
}
process.exit()
