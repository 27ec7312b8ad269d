import { useMutation, useQuery, useQueryClient } from '@tanstack/react-query'
import { useState } from 'react'
import type { UsageReport } from '../../../sdk/index.ts'
import { tunery } from '../../lib/api.ts'
import { fieldError } from '../../lib/errors.ts'
import { formatBytes, formatCompact, formatCount, formatMoney } from '../../lib/format.ts'
import { useKeyNames, useModelNames } from '../../lib/names.ts'
import { refresh_ms } from '../../lib/query.ts'
import { useMay } from '../../lib/session.ts'
import { day_ms, utcDay } from '../../lib/utc-day.ts'
import { Bars } from '../../ui/bars.tsx'
import { Button } from '../../ui/button.tsx'
import { EmptyState, FormError, Loaded } from '../../ui/feedback.tsx'
import { Field, Form, NumberInput } from '../../ui/field.tsx'
import { Card, Stat } from '../../ui/layout.tsx'
import { LimitBar } from '../../ui/limit-bar.tsx'
import { type Column, Table } from '../../ui/table.tsx'
import { toast } from '../../ui/toast.tsx'
import { Segments } from '../../ui/toggles.tsx'
import { Count, Money } from '../../ui/values.tsx'

type Measure = 'cost' | 'requests' | 'tokens'
type Item = UsageReport['items'][number]
const tokensOf = (item: Item) => item.prompt_tokens + item.completion_tokens + item.trained_tokens

const figure = (id: 'requests' | `${'prompt' | 'completion' | 'trained'}_tokens`, header: string, from?: 'sm' | 'md') =>
  ({
    id,
    header,
    align: 'right',
    ...(from && { from }),
    cell: (item) => <Count compact={id !== 'requests'} value={item[id]} />,
    value: (item) => item[id],
  }) satisfies Column<Item>

export function UsageSection() {
  return (
    <div className="grid gap-4">
      <Limits />
      <Storage />
      <Usage />
      <Thresholds />
    </div>
  )
}

const storedKinds = {
  datasets: 'Datasets',
  files: 'Files',
  uploads: 'Unfinished uploads',
  models: 'Models',
  checkpoints: 'Unfinished trainings',
  exports: 'Exports',
  evaluations: 'Evaluations',
  responses: 'Stored responses',
  completions: 'Stored completions',
} as const

function Storage() {
  const query = useQuery({ queryKey: ['usage', 'storage'], queryFn: ({ signal }) => tunery.usage.storage({ signal }) })
  return (
    <Card title="Storage" description="Delete what you no longer need to free space.">
      <Loaded query={query}>
        {({ used_bytes, max_bytes, items }) => (
          <div className="grid gap-4">
            <LimitBar name="Used" used={used_bytes} limit={max_bytes} format={formatBytes} />
            <dl className="grid gap-x-4 gap-y-1 text-sm sm:grid-cols-3">
              {items.map(({ kind, count, bytes }) => (
                <div key={kind} className="flex justify-between gap-4">
                  <dt className="text-muted">
                    {storedKinds[kind]} ({formatCount(count)})
                  </dt>
                  <dd>{formatBytes(bytes)}</dd>
                </div>
              ))}
            </dl>
          </div>
        )}
      </Loaded>
    </Card>
  )
}

function Limits() {
  const query = useQuery({
    queryKey: ['user', 'profile'],
    queryFn: ({ signal }) => tunery.user.profile({ signal }),
    refetchInterval: 2 * refresh_ms,
  })
  return (
    <Card
      title="Limits"
      description={
        "Limits of your account's tier, per UTC day. Every API call counts, and every change made in the " +
        'dashboard; viewing pages does not.'
      }
    >
      <Loaded query={query}>
        {({ tier, limits, usage }) => (
          <div className="grid gap-4 sm:grid-cols-3">
            {(
              [
                ['API calls this minute', usage.minute.used, limits.requests_per_minute],
                ['API calls today', usage.day.used, limits.requests_per_day],
                ['Running now, jobs included', usage.concurrent, limits.max_concurrent],
              ] as const
            ).map(([name, used, limit]) => (
              <LimitBar key={name} name={name} used={used} limit={limit} />
            ))}
            <p className="text-sm text-muted sm:col-span-3">Tier: {tier.name}</p>
          </div>
        )}
      </Loaded>
    </Card>
  )
}

const spans = [
  { value: '7', label: '7 days' },
  { value: '30', label: '30 days' },
  { value: '90', label: '90 days' },
] as const
const groups = [
  { value: 'model', label: 'By model', header: 'Model' },
  { value: 'key', label: 'By key', header: 'Key or session' },
  { value: 'kind', label: 'By kind', header: 'Kind' },
] as const

function Usage() {
  const [span, setSpan] = useState<(typeof spans)[number]['value']>('30')
  const [group, setGroup] = useState<(typeof groups)[number]['value']>('model')
  const [measure, setMeasure] = useState<Measure>('requests')
  const modelName = useModelNames()
  const keyName = useKeyNames()
  const from = utcDay(Date.now() - (Number(span) - 1) * day_ms)
  const get = (group_by: string) => ({
    queryKey: ['usage', { from, group_by }],
    queryFn: ({ signal }: { signal: AbortSignal }) => tunery.usage.get({ from, group_by }, { signal }),
    refetchInterval: 6 * refresh_ms,
  })
  const days = useQuery(get('day'))
  const parts = useQuery(get(group))
  const amountOf = (item: Item) => (measure === 'tokens' ? tokensOf(item) : item[measure])
  return (
    <Card
      title="Usage"
      actions={
        <>
          <Segments label="What" value={measure} onChange={setMeasure} choices={measures} />
          <Segments label="Time" value={span} onChange={setSpan} choices={spans} />
        </>
      }
    >
      <Loaded query={days}>
        {(report) => {
          const format = (value: number) =>
            measure === 'cost' ? formatMoney(value, report.currency) : formatCompact(value)
          const byDay = new Map(report.items.map((item) => [item.day, item]))
          const bars = Array.from({ length: Number(span) }, (_, index) => {
            const day = utcDay(Date.parse(from) + index * day_ms)
            const item = byDay.get(day)
            return { label: day, value: item ? amountOf(item) : 0 }
          })
          return (
            <div className="grid gap-5">
              <dl className="grid grid-cols-2 gap-4 sm:grid-cols-4">
                <Stat label="Model requests and jobs" value={<Count value={report.total.requests} />} />
                <Stat
                  label="Input and output tokens"
                  value={<Count compact value={report.total.prompt_tokens + report.total.completion_tokens} />}
                />
                <Stat label="Trained tokens" value={<Count compact value={report.total.trained_tokens} />} />
                <Stat label="Cost" value={<Money value={report.total.cost} currency={report.currency} />} />
              </dl>
              <Bars
                title={`${measures.find(({ value }) => value === measure)!.label} by day`}
                bars={bars}
                format={format}
              />
            </div>
          )
        }}
      </Loaded>
      <div className="mt-6 mb-2">
        <Segments label="Parts" value={group} onChange={setGroup} choices={groups} />
      </div>
      <div className="-mx-4">
        <Loaded query={parts}>
          {(report) => (
            <Table
              label="Usage by part"
              rows={report.items}
              rowId={(item) => [item.model, item.model_id, item.key_id, item.kind].join()}
              sort={{ id: 'requests', desc: true }}
              empty={<EmptyState compact title="No usage in this period" />}
              columns={[
                {
                  id: 'name',
                  header: groups.find(({ value }) => value === group)!.header,
                  grow: true,
                  cell: (item) =>
                    item.model ? modelName(item.model) : item.key_id ? keyName(item.key_id) : (item.kind ?? '–'),
                  value: (item) => item.model ?? item.key_id ?? item.kind,
                },
                figure('requests', 'Requests'),
                figure('prompt_tokens', 'Input', 'sm'),
                figure('completion_tokens', 'Output', 'sm'),
                figure('trained_tokens', 'Trained', 'md'),
                {
                  id: 'cost',
                  header: 'Cost',
                  align: 'right',
                  cell: (item) => <Money value={item.cost} currency={report.currency} />,
                  value: (item) => item.cost,
                },
              ]}
            />
          )}
        </Loaded>
      </div>
    </Card>
  )
}
const measures = [
  { value: 'requests', label: 'Requests' },
  { value: 'tokens', label: 'Tokens' },
  { value: 'cost', label: 'Cost' },
] as const

function Thresholds() {
  const query = useQuery({
    queryKey: ['usage', 'thresholds'],
    queryFn: ({ signal }) => tunery.usage.thresholds.get({ signal }),
  })
  return (
    <Card
      title="Usage alerts"
      description={
        'At 80% and 100% of each amount, a usage.threshold event is sent to your webhooks. Requests are not ' +
        'blocked.'
      }
    >
      <Loaded query={query}>{(found) => <ThresholdsForm key={JSON.stringify(found)} found={found} />}</Loaded>
    </Card>
  )
}

function ThresholdsForm({ found }: { found: Awaited<ReturnType<typeof tunery.usage.thresholds.get>> }) {
  const mayWrite = useMay('usage:write')
  const client = useQueryClient()
  const [values, setValues] = useState(found)
  const save = useMutation({
    mutationFn: () => tunery.usage.thresholds.set(values),
    onSuccess: async () => {
      await client.invalidateQueries({ queryKey: ['usage', 'thresholds'] })
      toast.good('Saved')
    },
  })
  const fields = [
    { name: 'requests_per_day', label: 'API calls per day', help: 'Leave empty to use the limit of your tier.' },
    { name: 'tokens_per_month', label: 'Tokens per month', help: 'Input, output and trained tokens.' },
    { name: 'cost_per_month', label: 'Cost per month', help: 'In the currency of your prices.' },
  ] as const
  return (
    <Form onSubmit={() => save.mutate()}>
      <div className="grid gap-4 sm:grid-cols-3">
        {fields.map(({ name, label, help }) => (
          <Field key={name} label={label} optional help={help} error={fieldError(save.error, name)}>
            <NumberInput
              value={values[name]}
              onChange={(value) => setValues({ ...values, [name]: value })}
              min={0}
              decimals={name === 'cost_per_month'}
              disabled={!mayWrite}
            />
          </Field>
        ))}
      </div>
      <FormError error={save.error} fields={fields.map(({ name }) => name)} />
      {mayWrite && (
        <div>
          <Button type="submit" variant="primary" busy={save.isPending}>
            Save alerts
          </Button>
        </div>
      )}
    </Form>
  )
}
