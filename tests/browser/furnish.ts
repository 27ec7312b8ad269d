// Things to look at: what an account has after a day of work, made through the API.
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
}

export async function furnish({ address, key }: Pick<BrowserService, 'address' | 'key'>): Promise<Furniture> {
  const tunery = new Tunery({ baseUrl: `${address}/v1`, apiKey: key })
  const rows = readFileSync(path.join(root, 'examples/ticket-triage.jsonl'), 'utf8')
  const dataset = await tunery.datasets.upload(rows, { name: 'ticket-triage', description: 'Tickets of spring' })
  await tunery.datasets.upload(rows.split('\n').slice(0, 40).join('\n'), { name: 'ticket-triage-small' })
  const train = (name: string, epochs: number) =>
    tunery.jobs.create({
      model_id: tiny,
      dataset_id: dataset.id,
      name,
      config: { method: 'lora', training_config: { epochs, batch_size: 8 } },
    })
  const { id } = await train('tickets, two epochs', 2)
  const job = await tunery.jobs.wait(id)
  if (!job.model) throw new Error(`the job ended without a model: ${job.error?.message}`)
  await tunery.deployments.create({ model: job.model, name: 'tickets' })
  for (const content of ['I forgot my password.', 'The app is slow today.', 'Please cancel my plan.'])
    await tunery.chat.completions.create({ model: 'tickets', max_tokens: 8, messages: [{ role: 'user', content }] })
  const running = await train('tickets, many epochs', 50)
  await train('tickets, a second try', 3)
  return { dataset, job, running }
}
