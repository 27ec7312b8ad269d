// Things to look at: what an account has after a week of work, made through the API, and the pages that show it.
import { readFileSync } from 'node:fs'
import path from 'node:path'
import { root } from '../../lib/root.ts'
import { type Dataset, type Job, Tunery } from '../../sdk/index.ts'
import { tiny } from '../support/tiny.ts'
import type { BrowserService } from './support.ts'

export interface Furniture {
  dataset: Dataset
  /** Completed, deployed as `tickets`. */
  job: Job
  /** Long: runs or waits. */
  running: Job
  /** Addresses by name, of those who are signed in. */
  pages: Record<string, string>
  /** The addresses of people without an account. */
  invitation: string
  share: string
}

/** What the service needs for it. */
export const furnishable = { TUNERY_SHARE_LINKS: 'on' }

export async function furnish({ address, key }: Pick<BrowserService, 'address' | 'key'>): Promise<Furniture> {
  const tunery = new Tunery({ baseUrl: `${address}/v1`, apiKey: key })
  const rows = readFileSync(path.join(root, 'examples/ticket-triage.jsonl'), 'utf8')
  const dataset = await tunery.datasets.upload(rows, { name: 'ticket-triage', description: 'Tickets of spring' })
  await tunery.datasets.upload(rows.split('\n').slice(0, 40).join('\n'), { name: 'ticket-triage-small' })
  const broken = [
    '{"messages":[{"role":"user","content":"no answer"}]}',
    '{"messages":',
    '{"prompt":"a","completion":"b"}',
  ]
  const invalid = await tunery.datasets.upload(broken.join('\n'), { name: 'broken rows' })
  const train = (name: string, epochs: number) =>
    tunery.jobs.create({
      model_id: tiny,
      dataset_id: dataset.id,
      name,
      metadata: { team: 'support' },
      config: {
        method: 'lora',
        training_config: { epochs, batch_size: 8 },
        evaluation_config: { validation_split: 0.1, every_steps: 10, sample_prompts: ['I forgot my password.'] },
      },
    })
  const { id } = await train('tickets, two epochs', 2)
  const job = await tunery.jobs.wait(id)
  if (!job.model) throw new Error(`the job ended without a model: ${job.error?.message}`)
  await tunery.deployments.create({ model: job.model, name: 'tickets' })
  for (const content of ['I forgot my password.', 'The app is slow today.', 'Please cancel my plan.'])
    await tunery.chat.completions.create({ model: 'tickets', max_tokens: 8, messages: [{ role: 'user', content }] })
  const evaluation = await tunery.evaluations.create({
    name: 'held-out tickets',
    model: job.model,
    baseline: tiny,
    dataset: dataset.id,
    held_out_by: job.id,
    graders: [{ type: 'regex', name: 'words', pattern: '\\w' }],
    rows: 6,
    sampling: { max_tokens: 8 },
  })
  await tunery.exports.create({ model: job.model, format: 'gguf' })
  await tunery.webhooks.create({ url: 'https://example.com/hooks/tunery', events: ['training.completed'] })
  const { link } = await tunery.invitations.create({ name: 'Grace', email: 'grace@example.com', role: 'member' })
  await tunery.evaluations.wait(evaluation.id)
  const share = await tunery.models.shares.create(job.model, { evaluation: evaluation.id })
  const running = await train('tickets, many epochs', 50)
  await train('tickets, a second try', 3)
  const ofDataset = `/datasets/${dataset.id}`
  const ofJob = `/jobs/${job.id}`
  return {
    dataset,
    job,
    running,
    invitation: link.replace(address, ''),
    share: share.link,
    pages: {
      'job-running': `/jobs/${running.id}`,
      home: '/',
      datasets: '/datasets',
      dataset: ofDataset,
      ...tabs('dataset', ofDataset, ['problems', 'rows', 'tokens']),
      'dataset-invalid': `/datasets/${invalid.id}?tab=problems`,
      jobs: '/jobs',
      job: ofJob,
      ...tabs('job', ofJob, ['samples', 'rows', 'checkpoints', 'log', 'config']),
      'new-job': `/jobs/new?dataset=${dataset.id}`,
      'new-job-clone': `/jobs/new?clone=${job.id}`,
      models: '/models',
      model: `/models/${job.model}`,
      'base-model': `/models/base/${tiny}`,
      evaluations: '/evaluations',
      evaluation: `/evaluations/${evaluation.id}`,
      deployments: '/deployments',
      deployment: '/deployments/tickets',
      exports: '/exports',
      playground: '/playground',
      ...Object.fromEntries(
        ['profile', 'keys', 'members', 'webhooks', 'usage', 'audit', 'sessions'].map((section) => [
          `settings-${section}`,
          `/settings/${section}`,
        ]),
      ),
      ...tabs('operator', '/operator', ['accounts', 'tiers', 'machine']),
      'docs-api': '/docs/api',
      docs: '/docs/overview',
      'not-found': '/nowhere/at/all',
      'no-dataset': '/datasets/ds_nothing',
    },
  }
}

const tabs = (name: string, address: string, values: readonly string[]): Record<string, string> =>
  Object.fromEntries(values.map((tab) => [`${name}-${tab}`, `${address}?tab=${tab}`]))
