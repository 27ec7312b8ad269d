import { execFileSync } from 'node:child_process'
import path from 'node:path'
import type { startService } from '../../bench/support/service.ts'
import { client, colourRows } from '../support/client.ts'
import { tiny } from '../support/tiny.ts'

const root = path.resolve(import.meta.dirname, '../..')

/**
 * Creates one of each resource, so that requests find something. Returns the ids of these (`known`), the ids that the
 * run itself needs (`own`), and an operator's key.
 */
export async function createResources(
  service: Awaited<ReturnType<typeof startService>>,
  settings: Record<string, string>,
): Promise<{ known: string[]; own: string[]; operatorKey: string }> {
  const { api } = service
  const env = { ...process.env, ...settings, TUNERY_DATA_DIR: service.dataDir }
  const made = execFileSync(
    path.join(root, 'tunery'),
    ['keys', 'create', '--name', 'ops', '--scopes', 'operator', '--json'],
    { env, encoding: 'utf8' },
  )
  const operator = JSON.parse(made) as { id: string; key: string }
  const profile = await api('GET', '/user/profile')
  const form = new FormData()
  form.set('file', new Blob([colourRows(8)]), 'rows.jsonl')
  const dataset = await api('POST', '/datasets/', form)
  const job = await api('POST', '/fine-tuning/jobs', {
    model_id: tiny,
    dataset_id: dataset.id,
    config: { training_config: { epochs: 1 } },
  })
  const own = client(service.url, service.key)
  const { status, model } = await own.untilEnded(job.id)
  if (status !== 'completed' || !model) throw new Error(`the first job is ${status}`)
  const exported = await own.exported({ model, format: 'gguf', merge: false })
  const deployment = await api('POST', '/deployments', { model, name: 'fuzz' })
  const member = await api('POST', '/members', { name: 'Another' })
  const key = await api('POST', '/keys', { name: 'another', user_id: member.id })
  return {
    known: [dataset.id, job.id, model, deployment.name, exported.id, member.id, key.id],
    own: [profile.account.id, profile.id, profile.key.id, operator.id],
    operatorKey: operator.key,
  }
}
