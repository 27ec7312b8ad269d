import { execFileSync } from 'node:child_process'
import path from 'node:path'
import { startService } from '../../bench/support/service.ts'
import { client, colourRows } from '../support/client.ts'
import { createOneOfEach, type Ids } from '../support/one-of-each.ts'
import { tiny, tinyModelsDir } from '../support/tiny.ts'

const root = path.resolve(import.meta.dirname, '../..')
/** Objects of each kind that a run may delete, cancel or complete. */
const spares_max = 4

/** A session of the dashboard: its cookie, and the token without which it changes nothing. */
export interface Session {
  id: string
  user_id: string
  name: string
  token: string
  csrf: string
}

/** Adds a member and signs them in; `again` begins another session of theirs. */
async function signIn(url: string, api: Awaited<ReturnType<typeof startService>>['api']) {
  const email = `${Math.random().toString(36).slice(2)}@example.com`
  const password = 'a long password of the fuzz'
  const begin = async (route: string, body: object): Promise<Session> => {
    const headers = { 'content-type': 'application/json' }
    const response = await fetch(url + route, { method: 'POST', headers, body: JSON.stringify(body) })
    const [cookie = ''] = response.headers.getSetCookie()
    const [, name = '', token = ''] = /^([^=]+)=([^;]+)/.exec(cookie) ?? []
    const state = await fetch(`${url}/session`, { headers: { cookie: `${name}=${token}` } })
    if (!state.ok) throw new Error(`${route} began no session: ${response.status} ${await response.text()}`)
    const { csrf_token: csrf, profile } = (await state.json()) as {
      csrf_token: string
      profile: { id: string; session: { id: string } }
    }
    return { id: profile.session.id, user_id: profile.id, name, token, csrf }
  }
  const { link } = await api('POST', '/invitations', { name: 'has a session', email, role: 'owner' })
  const session = await begin('/sign-in/invitation', { token: new URL(link).hash.slice(1), password })
  return { session, again: () => begin('/sign-in/password', { email, password }) }
}

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
 * those of others that may end (`spares`), the ids that the run itself needs (`own`), an operator's key, and the
 * sessions that ask for what a key may not: by operation for those that end some, `all` for the rest.
 */
async function createResources(
  { url, key, dataDir, api }: Awaited<ReturnType<typeof startService>>,
  settings: Record<string, string>,
): Promise<{ known: Ids; spares: Ids[]; own: string[]; operatorKey: string; sessions: Record<string, Session> }> {
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
  const { session, again } = await signIn(url, api)
  const sessions: Record<string, Session> = { all: session }
  for (const name of ['DELETE /session', 'DELETE /sessions', 'PUT /user/password'])
    sessions[name] = (await signIn(url, api)).session
  const known = {
    ...trained,
    session_id: session.id,
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
    spares.push({ ...others, ...made, export_id: id, session_id: (await again()).id })
  }
  return {
    known,
    spares,
    own: [
      ...[profile.account.id, profile.id, profile.key.id, operator.id],
      ...Object.values(sessions).flatMap(({ id, user_id }) => [id, user_id]),
    ],
    sessions,
    operatorKey: operator.key,
  }
}
