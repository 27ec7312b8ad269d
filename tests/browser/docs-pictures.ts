// The pictures of the docs: `npm run screenshots:docs` writes docs/images, light and dark, and some on a phone.
// `-- home job` of some pages; `-- --tiny` with the tests' tiny model, whose answers are nonsense, on a busy machine.
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import path from 'node:path'
import { parseArgs } from 'node:util'
import { root } from '../../lib/root.ts'
import { Tunery } from '../../sdk/index.ts'
import { tiny } from '../support/tiny.ts'
import { phone, settled, startBrowserService } from './support.ts'
import { toWebp } from './webp.ts'

const folder = path.join(root, 'docs/images')
const desktop = { width: 1280, height: 900 }
const width_px = { desktop: 1280, phone: 360 }
const { values: options, positionals: only } = parseArgs({
  options: { tiny: { type: 'boolean', default: false } },
  allowPositionals: true,
})
const base = options.tiny ? tiny : 'HuggingFaceTB/SmolLM2-135M-Instruct'
/** The tiny model learns less from a row, and sooner. */
const times = options.tiny ? 4 : 1
const settings: Record<string, string> = options.tiny
  ? {}
  : { TUNERY_MODELS_DIR: path.join(root, '.local/models'), TUNERY_THREADS: '2' }
const instruction = 'Triage the ticket.'
const question = 'I forgot my password for Sync. No rush.'

/** The demo's task with the real base: some minutes of training, and then another job at work. */
async function furnish(tunery: Tunery) {
  const read = (name: string) => readFileSync(path.join(root, 'examples', name), 'utf8')
  const rows = read('ticket-triage.jsonl')
  const dataset = await tunery.datasets.upload(rows, { name: 'ticket-triage', description: 'Tickets of spring' })
  const heldOut = await tunery.datasets.upload(read('ticket-triage.heldout.jsonl'), { name: 'tickets, held out' })
  const train = (name: string, epochs: number, every_steps: number) =>
    tunery.jobs.create({
      model_id: base,
      dataset_id: dataset.id,
      name,
      config: {
        training_config: { epochs: epochs * times, ...(options.tiny && { learning_rate: 0.01 }) },
        evaluation_config: {
          validation_split: 0.15,
          every_steps: every_steps * times,
          sample_prompts: [question],
          keep_checkpoints: 2,
        },
      },
    })
  const { id } = await train('tickets', 2, 15)
  const job = await tunery.jobs.wait(id)
  if (!job.model) throw new Error(`the job ended without a model: ${job.error?.message}`)
  await tunery.deployments.create({ model: job.model, name: 'tickets' })
  const evaluation = await tunery.evaluations.create({
    name: 'held-out tickets',
    model: job.model,
    baseline: base,
    dataset: heldOut.id,
    rows: 30,
    graders: [{ type: 'json_equal', name: 'fields' }],
  })
  while (['queued', 'running'].includes((await tunery.evaluations.get(evaluation.id)).status))
    await new Promise((resolve) => setTimeout(resolve, 1000))
  for (const content of [question, 'The app is slow today.', 'Please cancel my plan.'])
    await tunery.chat.completions.create({
      model: 'tickets',
      messages: [
        { role: 'system', content: instruction },
        { role: 'user', content },
      ],
    })
  const running = await train('tickets, more epochs', 6, 20)
  for await (const event of tunery.jobs.events(running.id)) if (Number(event.data?.step) >= 90 * times) break
  await train('tickets, next try', 3, 20)
  return { dataset, job, running, evaluation }
}

const pagesOf = ({
  dataset,
  job,
  running,
  evaluation,
}: Awaited<ReturnType<typeof furnish>>): Record<string, string> => ({
  home: '/',
  dataset: `/datasets/${dataset.id}`,
  'new-job': `/jobs/new?dataset=${dataset.id}`,
  job: `/jobs/${job.id}`,
  'running-job': `/jobs/${running.id}`,
  playground: `/playground?models=${encodeURIComponent(`${base},tickets`)}`,
  evaluation: `/evaluations/${evaluation.id}`,
  deployment: '/deployments/tickets',
  settings: '/settings/usage',
  operator: '/operator',
  'api-reference': '/docs#createJob',
})
const onPhone = ['home', 'job', 'playground']

mkdirSync(folder, { recursive: true })
const service = await startBrowserService('pictures', settings)
try {
  const objects = await furnish(new Tunery({ baseUrl: `${service.address}/v1`, apiKey: service.key }))
  const pages = Object.entries(pagesOf(objects)).filter(([name]) => only.length === 0 || only.includes(name))
  for (const scheme of ['light', 'dark'] as const) {
    const { page, complaints } = await service.visit({ scheme, size: desktop, reducedMotion: true })
    for (const [name, address] of pages) await shoot(page, address, `${name}-${scheme}`, width_px.desktop)
    if (complaints.length > 0) console.log(complaints.join('\n'))
  }
  const { page } = await service.visit({ size: phone, reducedMotion: true })
  for (const [name, address] of pages)
    if (onPhone.includes(name)) await shoot(page, address, `${name}-phone`, width_px.phone)
} finally {
  await service.stop()
}

type Page = Awaited<ReturnType<typeof service.visit>>['page']
async function shoot(page: Page, address: string, name: string, width: number): Promise<void> {
  await page.goto(address)
  await settled(page)
  if (address.startsWith('/playground')) await ask(page)
  // Curves are drawn after the events have come.
  await page.waitForLoadState('networkidle', { timeout: 2000 }).catch(() => {})
  writeFileSync(path.join(folder, `${name}.webp`), await toWebp(page, await page.screenshot(), width))
  console.log(`docs/images/${name}.webp`)
}

/** The playground shows its answers. */
async function ask(page: Page): Promise<void> {
  await page.getByLabel('System prompt').fill(instruction)
  await page.getByPlaceholder('Ask a question').fill(question)
  await page.getByRole('button', { name: 'Send' }).click()
  await page.getByRole('button', { name: 'Stop' }).first().waitFor({ state: 'detached' })
}
