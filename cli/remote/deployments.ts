// `deploy`, `rollback` and `deployments`: the names that clients call.
import { setTimeout as sleep } from 'node:timers/promises'
import { type Deployment, isTuneryError } from '../../sdk/index.ts'
import { CommandError, UsageError } from '../support/errors.ts'
import { typed } from '../support/invocation.ts'
import { decimal, type GlobalOptions, type Program, runs } from '../support/options.ts'
import { show, showList } from '../support/output.ts'
import { type Connection, connect } from '../support/service.ts'
import { clean, fields, time } from '../support/text.ts'
import { first, type ListOptions, listOptions, pageOf } from './lists.ts'
import { confirmDeletion } from './models.ts'
import { idOf } from './named.ts'
import { addScalingCommands } from './scaling.ts'

/** Between two looks at a deployment that is starting. */
const poll_ms = 500

interface DeployOptions extends GlobalOptions {
  gate?: string
  minScore?: number
  notWorse?: boolean
  wait: boolean
}

export function addDeploymentCommands(program: Program): void {
  runs(
    program
      .command('deploy')
      .description('serve a model by a name, or let the name serve another model')
      .argument('<model>', 'an own model or a base')
      .argument('<name>', 'what clients call it')
      .option('--gate <evaluation>', 'switch only if the rows and graders of this evaluation allow it')
      .option('--min-score <score>', 'of the gate: the score that the model must reach, 0 to 1', decimal('--min-score'))
      .option('--not-worse', 'of the gate: refuse a model that is worse than the current one by more than chance')
      .option('--no-wait', 'do not wait until it serves'),
    deploy,
  )
  runs(
    program
      .command('rollback')
      .description('return to the model that a name served before')
      .argument('<deployment>', 'the name'),
    async (name: string, options: GlobalOptions) => {
      const deployment = await connect(options).tunery.deployments.rollback(name)
      show(options, deployment, `${name} serves ${deployment.model} again.`)
    },
  )
  const group = program.command('deployments').description('what is served by name')
  runs(listOptions(group.command('list').description('list the deployments')), list)
  runs(
    group.command('show').description('what a name serves, and served').argument('<deployment>', 'the name'),
    showOne,
  )
  addScalingCommands(group)
  runs(
    group
      .command('delete')
      .description('stop serving a name')
      .argument('<deployment>', 'the name')
      .option('-y, --yes', 'do not ask'),
    async (name: string, options: GlobalOptions & { yes?: boolean }) => {
      const { tunery } = connect(options)
      await confirmDeletion(name, options)
      show(options, await tunery.deployments.delete(name), `${name} is no longer served.`)
    },
  )
}

async function deploy(modelName: string, name: string, options: DeployOptions): Promise<void> {
  const { gate, minScore, notWorse } = options
  if (gate === undefined && (minScore !== undefined || notWorse))
    throw new UsageError('--min-score and --not-worse belong to a gate: add --gate EVALUATION.')
  const connection = connect(options)
  const { tunery } = connection
  const model = modelName.includes('/') ? modelName : await idOf(tunery, 'model', modelName)
  const current = await tunery.deployments.get(name).catch((error) => {
    if (isTuneryError(error, 'deployment_not_found')) return undefined
    throw error
  })
  if (!current && gate !== undefined)
    throw new UsageError(`There is no deployment '${name}' yet, so there is nothing to guard. Leave out --gate.`)
  const started = current
    ? await tunery.deployments.switch(name, {
        model,
        ...(gate !== undefined && {
          gate: {
            evaluation: gate,
            ...(minScore !== undefined && { min_score: minScore }),
            ...(notWorse && { not_worse_than_current: true }),
          },
        }),
      })
    : await tunery.deployments.create({ model, name })
  const deployment = options.wait ? await untilSettled(connection, started) : started
  const reason = deployment.model === model || deployment.pending ? undefined : await refusal(connection, name)
  show(options, deployment, () => describe(deployment, model, reason))
  if (deployment.status === 'failed') throw new CommandError('')
  if (reason !== undefined) throw new CommandError('')
}

/** Waits until the deployment serves, has failed, or its gate has decided. */
async function untilSettled({ tunery }: Connection, started: Deployment): Promise<Deployment> {
  let deployment = started
  while (deployment.status === 'starting' || deployment.pending) {
    await sleep(poll_ms)
    deployment = await tunery.deployments.get(deployment.name)
  }
  return deployment
}

/** Why the gate refused the model. */
async function refusal({ tunery }: Connection, name: string): Promise<string> {
  const [last] = (await tunery.deployments.history(name, { limit: 1 })).items
  return last?.reason ?? 'the gate refused it.'
}

function describe(
  { name, status, error, model: served, pending }: Deployment,
  model: string,
  reason: string | undefined,
) {
  if (status === 'failed') return `${name} does not serve: ${clean(error?.message ?? 'it failed.')}`
  if (pending) return `${name} serves ${served} until the gate has decided; ${pending.evaluation} runs.`
  if (reason !== undefined) return `${name} keeps serving ${served}: ${clean(reason)}`
  return status === 'ready'
    ? `${name} serves ${model}. Ask it: ${typed(`chat ${name}`)}`
    : `${name} is ${status} with ${served}.`
}

async function list(options: GlobalOptions & ListOptions): Promise<void> {
  const { items, more } = await first(connect(options).tunery.deployments.list({ limit: pageOf(options) }), options)
  showList(
    options,
    items,
    [
      { head: 'name', value: ({ name }) => name, flexible: true },
      { head: 'model', value: ({ model }) => model },
      { head: 'base', value: ({ base_model_id }) => base_model_id },
      { head: 'status', value: ({ status, pending }) => (pending ? `${status}, a gate waits` : status) },
      { head: 'changed', value: ({ updated_at }) => time(updated_at) },
    ],
    { empty: `Nothing is deployed. '${typed('deploy MODEL NAME')}' serves a model.`, more },
  )
}

async function showOne(name: string, options: GlobalOptions): Promise<void> {
  const { tunery } = connect(options)
  const deployment = await tunery.deployments.get(name)
  const { items: history } = await first(tunery.deployments.history(name, { limit: 20 }), { limit: 20 })
  show(options, { ...deployment, history }, () =>
    fields([
      ['name', deployment.name],
      ['model', deployment.model],
      ['base', deployment.base_model_id],
      ['status', deployment.status],
      ['error', deployment.error?.message],
      ['before', deployment.former_model],
      ['pending', deployment.pending && `${deployment.pending.model}, if ${deployment.pending.evaluation} allows it`],
      ...history.map(({ created_at, action, model, reason }, index): [string, string] => [
        index === 0 ? 'history' : '',
        `${time(created_at)}  ${action.replaceAll('_', ' ')}  ${model}${reason ? `  ${reason}` : ''}`,
      ]),
    ]),
  )
}
