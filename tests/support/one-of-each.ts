// One object of each kind that routes name by an id.
import assert from 'node:assert/strict'
import { type Client, until } from './client.ts'
import { evaluationEnded, same } from './evaluations.ts'
import { tiny } from './tiny.ts'

const rowsWithAnswers = {
  type: 'jsonl',
  source: { type: 'file_content', content: [{ item: { reference: 'x' }, sample: { output_text: 'x' } }] },
}

/** Ids by the names of path parameters. */
export type Ids = Record<string, string>

/**
 * Creates one object of each kind that takes no training, all of which have ended, around a model and a dataset. `name`
 * is that of the deployment. The service must have TUNERY_STORE_COMPLETIONS, and TUNERY_SHARE_LINKS on.
 */
export async function createOneOfEach(
  { api }: Pick<Client, 'api'>,
  { model_id, dataset_id, name }: { model_id: string; dataset_id: string; name: string },
): Promise<Ids> {
  /** Creates an object and returns its id. */
  async function created(route: string, body: object, method = 'POST'): Promise<string> {
    const { status, body: answer } = await api(method, route, body)
    assert.ok(status < 300, `${method} ${route}: ${status} ${JSON.stringify(answer)}`)
    return answer.id ?? answer.name
  }
  const ended = (what: string, route: string, statuses: string[]) =>
    until(`${what} to end`, async () => statuses.includes((await api('GET', route)).body.status))

  const ids: Ids = { name, checkpoint: model_id, permission_id: 'cp_someone' }
  ids.share_id = await created(`/fine-tuning/models/${model_id}/shares`, {})
  await created('/deployments', { name, model: model_id })
  await ended('the deployment', `/deployments/${name}`, ['ready'])
  ids.key_id = await created('/keys', { name: 'another' })
  ids.user_id = await created('/members', { name: `another of ${name}`, role: 'member' })
  ids.invitation_id = await created('/invitations', { name: `invited to ${name}` })
  ids.webhook_id = await created('/webhooks', { url: 'https://hooks.example.com/', events: ['training.failed'] })
  ids.delivery_id = await created(`/webhooks/${ids.webhook_id}/test`, {})
  ids.upload_id = await created('/uploads', { filename: 'x', purpose: 'batch', bytes: 1, mime_type: 'text/plain' })
  const form = new FormData()
  form.set('purpose', 'batch')
  form.set('file', new Blob(['no JSON']), 'requests.jsonl')
  ids.file_id = (await api('POST', '/files', form)).body.id
  const batch = { input_file_id: ids.file_id, endpoint: '/v1/completions', completion_window: '24h' }
  ids.batch_id = await created('/batches', batch)
  await ended('the batch', `/batches/${ids.batch_id}`, ['failed'])
  const evaluation = { model: tiny, dataset: dataset_id, graders: [same], rows: 1 }
  ids.evaluation_id = await created('/evaluations', evaluation)
  assert.equal((await evaluationEnded({ api }, ids.evaluation_id)).status, 'completed')
  const graded = { data_source_config: { type: 'custom', item_schema: {} }, testing_criteria: [same] }
  ids.eval_id = await created('/evals', graded)
  ids.run_id = await created(`/evals/${ids.eval_id}/runs`, { data_source: rowsWithAnswers })
  ids.output_item_id = `outputitem-${ids.run_id}-1`
  assert.equal((await evaluationEnded({ api }, ids.run_id)).status, 'completed')
  const messages = [{ role: 'user', content: 'hello' }]
  ids.completion_id = await created('/chat/completions', { model: tiny, messages, max_tokens: 1, store: true })
  ids.response_id = await created('/responses', { model: tiny, input: 'hi', max_output_tokens: 1 })
  const deliveries = `/webhooks/${ids.webhook_id}/deliveries`
  await until('the delivery to end', async () => {
    const { body } = await api('GET', `${deliveries}/${ids.delivery_id}`)
    return body.next_attempt_at === null
  })
  return ids
}
