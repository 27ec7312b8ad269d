// A name is enough where an id is asked for, if only one thing has it.
import { isTuneryError, type PagePromise, type Tunery } from '../../sdk/index.ts'
import { UsageError } from '../support/errors.ts'
import { clean } from '../support/text.ts'

type Kind = 'job' | 'model' | 'dataset' | 'evaluation'
interface Named {
  id: string
  name: string
}

const kinds: Record<Kind, { prefix: string; list(tunery: Tunery, name: string): PagePromise<Named> }> = {
  job: { prefix: 'job_', list: (tunery, name) => tunery.jobs.list({ name, limit: 100 }) },
  model: { prefix: 'mdl_', list: (tunery, name) => tunery.models.list({ name, limit: 100 }) },
  dataset: { prefix: 'ds_', list: (tunery, name) => tunery.datasets.list({ name, limit: 100 }) },
  // The list of evaluations has no filter.
  evaluation: { prefix: 'eval_', list: (tunery) => tunery.evaluations.list({ limit: 100 }) },
}

/**
 * The id of what is called so. What nothing is called stays as it is, for the service to refuse. Throws a UsageError
 * that lists the ids where several things have the name.
 */
export async function idOf(tunery: Tunery, kind: Kind, nameOrId: string): Promise<string> {
  const { prefix, list } = kinds[kind]
  if (nameOrId.startsWith(prefix) || nameOrId === '') return nameOrId
  const matches: Named[] = []
  for await (const item of list(tunery, nameOrId)) if (item.name === nameOrId) matches.push(item)
  if (matches.length > 1)
    throw new UsageError(
      `${matches.length} ${kind}s are named '${clean(nameOrId)}'. Give the id of one: ` +
        `${matches.map(({ id }) => id).join(', ')}`,
    )
  return matches[0]?.id ?? nameOrId
}

/** The same of what can be called: a deployment of the name goes first, and bases have names of their own. */
export async function callableOf(tunery: Tunery, nameOrId: string): Promise<string> {
  if (nameOrId.includes('/') || nameOrId.startsWith('mdl_') || nameOrId.startsWith('ft:')) return nameOrId
  const isDeployment = await tunery.deployments.get(nameOrId).then(
    () => true,
    (error) => {
      // A key may be allowed to call models and nothing else: the service then decides.
      if (isTuneryError(error)) return false
      throw error
    },
  )
  if (isDeployment) return nameOrId
  return idOf(tunery, 'model', nameOrId).catch((error) => {
    if (isTuneryError(error) && error.status === 403) return nameOrId
    throw error
  })
}
