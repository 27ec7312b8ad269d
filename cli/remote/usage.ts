// `usage`: what the account used, and what it cost.
import type { StorageReport, UsageReport } from '../../sdk/index.ts'
import { UsageError } from '../support/errors.ts'
import { type GlobalOptions, type Program, runs } from '../support/options.ts'
import { show } from '../support/output.ts'
import { connect } from '../support/service.ts'
import { bar, bytes, type Column, duration, number, price, table } from '../support/text.ts'

const groups = ['day', 'model', 'key', 'kind'] as const

interface UsageOptions extends GlobalOptions {
  by: string
  from?: string
  to?: string
  storage?: boolean
}

export function addUsageCommand(program: Program): void {
  runs(
    program
      .command('usage')
      .description('what the account used and what it cost')
      .option('--by <group>', `${groups.join(', ')}, or several with commas`, 'day')
      .option('--from <day>', 'first UTC day, YYYY-MM-DD; default: 29 days before the last')
      .option('--to <day>', 'last UTC day; default: today')
      .option('--storage', 'instead: how much the account stores, and how much it may'),
    usage,
  )
}

type Item = UsageReport['items'][number]

async function usage(options: UsageOptions): Promise<void> {
  if (options.storage) {
    const report = await connect(options).tunery.usage.storage()
    return show(options, report, () => describeStorage(report))
  }
  const by = options.by.split(',').map((group) => group.trim())
  const wrong = by.find((group) => !(groups as readonly string[]).includes(group))
  if (wrong !== undefined)
    throw new UsageError(`--by is one or more of ${groups.join(', ')} with commas, not '${wrong}'.`)
  const { from, to } = options
  const report = await connect(options).tunery.usage.get({ from, to, group_by: by.join(',') })
  show(options, report, () => describe(report, by))
}

function describeStorage({ items, used_bytes, max_bytes }: StorageReport): string {
  const columns: Column<StorageReport['items'][number]>[] = [
    { head: 'what', value: ({ kind }) => kind },
    { head: 'count', value: ({ count }) => number(count), right: true },
    { head: 'size', value: (item) => bytes(item.bytes), right: true },
  ]
  const most = max_bytes === null ? 'without a limit' : `of ${bytes(max_bytes)} that the tier allows`
  return `${table(items, columns)}\n\n${bytes(used_bytes)} stored, ${most}.`
}

function describe({ items, total, from, to, currency }: UsageReport, by: string[]): string {
  const period = from === to ? from : `${from} to ${to}`
  if (items.length === 0) return `Nothing was used from ${period}.`
  const tokens = (item: Pick<Item, 'prompt_tokens' | 'completion_tokens' | 'trained_tokens'>) =>
    item.prompt_tokens + item.completion_tokens + item.trained_tokens
  const costs = total.cost > 0
  const measure = (item: Item) => (costs ? item.cost : tokens(item))
  const most = Math.max(...items.map(measure), Number.MIN_VALUE)
  const name: Record<string, (item: Item) => string> = {
    day: ({ day }) => day ?? '',
    model: ({ model, model_id }) => (model_id && model_id !== model ? `${model} (${model_id})` : (model ?? '')),
    key: ({ key_id }) => key_id ?? '',
    kind: ({ kind }) => kind ?? '',
  }
  const columns: Column<Item>[] = [
    ...by.map((group) => ({ head: group, value: name[group]!, flexible: group === 'model' })),
    { head: 'requests', value: ({ requests }) => number(requests), right: true },
    { head: 'tokens in', value: ({ prompt_tokens }) => number(prompt_tokens), right: true },
    { head: 'out', value: ({ completion_tokens }) => number(completion_tokens), right: true },
    { head: 'trained', value: ({ trained_tokens }) => number(trained_tokens), right: true },
    { head: 'cost', value: ({ cost }) => price(cost, currency), right: true },
    { head: costs ? 'share of cost' : 'share of tokens', value: (item) => bar(measure(item) / most, 16) },
  ]
  return (
    `${table(items, columns)}\n\n${period}: ${number(total.requests)} requests, ${number(tokens(total))} tokens, ` +
    `${duration(total.seconds)} of work, ${price(total.cost, currency)}.`
  )
}
