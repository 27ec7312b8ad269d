import { execFileSync } from 'node:child_process'
import path from 'node:path'
import { startService } from '../../bench/support/service.ts'
import { client, colourRows } from '../support/client.ts'
import { createOneOfEach, type Ids } from '../support/one-of-each.ts'
import { tiny, tinyModelsDir } from '../support/tiny.ts'

const root = path.resolve(import.meta.dirname, '../..')
/** Objects of each kind that a run may delete, cancel or complete. */
const spares_max = 4

/** Starts a service in which a request for any route can find an object. */
export async function startFurnished(settings: Record<string, string> = {}) {
  const all = {
    TUNERY_MODELS_DIR: tinyModelsDir(),
    TUNERY_STORE_COMPLETIONS: '1',
    TUNERY_SHARE_LINKS: 'on',
    // Keep all requests on this machine.
    TUNERY_HUGGINGFACE_URL: 'http://127.0.0.1:1',
    ...settings,
  }
  const service = await startService(all)
  return { service, ...(await createResources(service, all)) }
}

/**
 * Creates one of each object that routes name by an id. Returns their ids by the names of path parameters (`known`),
 * those of others that may end (`spares`), the ids that the run itself needs (`own`), and an operator's key.
 */
async function createResources(
  { url, key, dataDir, api }: Awaited<ReturnType<typeof startService>>,
  settings: Record<string, string>,
): Promise<{ known: Ids; spares: Ids[]; own: string[]; operatorKey: string }> {
  const env = { ...process.env, ...settings, TUNERY_DATA_DIR: dataDir }
  const made = execFileSync(
    path.join(root, 'tunery'),
    ['keys', 'create', '--name', 'ops', '--scopes', 'operator', '--json'],
    { env, encoding: 'utf8' },
  )
  const operator = JSON.parse(made) as { id: string; key: string }
  const profile = await api('GET', '/user/profile')
  const owner = client(url, key)
  const dataset_id = (await owner.upload(colourRows(8))).body.id
  const train = async () => {
    const config = { training_config: { epochs: 1 }, evaluation_config: { validation_split: 0.25 } }
    const { id } = await api('POST', '/fine-tuning/jobs', { model_id: tiny, dataset_id, config })
    const { status, model } = await owner.untilEnded(id)
    if (status !== 'completed' || !model) throw new Error(`the job is ${status}`)
    return { job_id: id as string, model_id: model }
  }
  const trained = await train()
  const exported = await owner.exported({ model: trained.model_id, format: 'gguf', merge: false })
  const known = {
    ...trained,
    dataset_id,
    export_id: exported.id,
    account_id: profile.account.id,
    ...(await createOneOfEach(owner, { ...trained, dataset_id, name: 'fuzz' })),
  }
  const spares: Ids[] = []
  for (let number = 1; number <= spares_max; number++) {
    const others = { dataset_id: (await owner.upload(colourRows(8))).body.id, ...(await train()) }
    const made = await createOneOfEach(owner, { ...others, name: `fuzz-${number}` })
    await api('PUT', `/deployments/${made.name}/scaling`, { scaling: { min_replicas: 0, max_replicas: 1 } })
    const { id } = await owner.exported({ model: others.model_id, format: 'gguf', merge: false })
    spares.push({ ...others, ...made, export_id: id })
  }
  return {
    known,
    spares,
    own: [profile.account.id, profile.id, profile.key.id, operator.id],
    operatorKey: operator.key,
  }
}
