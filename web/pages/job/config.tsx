import { type GroupName, hyperparameters, method } from '../../../contract/hyperparameters.ts'
import type { Job } from '../../../sdk/index.ts'
import { formatCount, formatNumber } from '../../lib/format.ts'
import { settingLabel } from '../../lib/jobs.ts'
import { DatasetName, ModelName } from '../../parts/names.tsx'
import { CopyButton, ExternalLink, LinkButton, TextLink } from '../../ui/button.tsx'
import { Help } from '../../ui/disclosure.tsx'
import { Badge, type Tone } from '../../ui/feedback.tsx'
import { Card } from '../../ui/layout.tsx'
import { Code, Message } from '../../ui/values.tsx'

type Source = Job['resolved_config']['method']['source']
interface Setting {
  name: string
  value: unknown
  source: Source
  description?: string | undefined
}

const sources: Record<Source, { text: string; tone: Tone }> = {
  request: { text: 'set in the request', tone: 'accent' },
  default: { text: 'default', tone: 'neutral' },
  base_size: { text: 'default for this size', tone: 'neutral' },
  model: { text: 'from the starting model', tone: 'neutral' },
}

const groups: readonly { name: GroupName; title: string }[] = [
  { name: 'training_config', title: 'Training' },
  { name: 'lora_config', title: 'Adapter' },
  { name: 'method_options', title: 'Objective' },
  { name: 'evaluation_config', title: 'Evaluation' },
]

const inColumn = 'mb-4 break-inside-avoid'

/** Some settings say that they are only for one objective: ``For `dpo`: …``. */
const applies = (description: string | undefined, objective: string): boolean =>
  !description?.startsWith('For `') || description.split(':')[0]!.includes(`\`${objective}\``)

/** Every value in force, who chose it, and what it does. */
export default function Config({ job }: { job: Job }) {
  const { resolved_config: resolved } = job
  const objective = resolved.method_options.objective.value
  const request = JSON.stringify(
    { model_id: job.model_id, dataset_id: job.dataset_id, name: job.name, config: job.config },
    null,
    2,
  )
  return (
    <div className="grid grid-cols-[minmax(0,1fr)] gap-4">
      <Card
        title="Settings"
        description="Every value this job runs with, and where it comes from."
        actions={
          <>
            <CopyButton text={request} label="Copy as API request" />
            <LinkButton size="sm" to="/jobs/new" search={{ clone: job.id }}>
              Clone job
            </LinkButton>
          </>
        }
      >
        <dl className="grid gap-x-8 gap-y-1.5 sm:grid-cols-2">
          <Line label="Starts from">
            <ModelName id={job.model_id} />
          </Line>
          <Line label="Dataset">
            <DatasetName id={job.dataset_id} />
          </Line>
          <Line label="Job ID">
            <Code>{job.id}</Code> <CopyButton text={job.id} label="Copy ID" />
          </Line>
          {Object.entries(job.metadata).map(([key, value]) => (
            <Line key={key} label={key}>
              <TextLink to="/jobs" search={{ metadata: `${key}=${value}` }} title="Jobs with this metadata">
                {value}
              </TextLink>
            </Line>
          ))}
        </dl>
      </Card>
      <div className="gap-4 lg:columns-2">
        <Card title="Method" className={inColumn}>
          <Settings
            label="Method"
            settings={[{ name: 'method', ...resolved.method, description: method.description }]}
          />
        </Card>
        {groups.map(({ name, title }) => {
          const group = resolved[name] as Record<string, { value: unknown; source: Source }> | null
          if (!group) return null
          const texts = hyperparameters[name] as Record<string, { description: string }>
          return (
            <Card key={name} title={title} className={inColumn}>
              <Settings
                label={title}
                settings={Object.entries(group)
                  .filter(([key]) => applies(texts[key]?.description, objective))
                  .map(([key, each]) => ({ name: key, ...each, description: texts[key]?.description }))}
              />
            </Card>
          )
        })}
      </div>
      <p className="text-sm text-muted">
        <ExternalLink href="/docs/reference/job-config">Reference of all settings</ExternalLink>
      </p>
    </div>
  )
}

const Line = ({ label, children }: { label: string; children: React.ReactNode }) => (
  <div className="flex min-w-0 flex-wrap items-baseline gap-x-4">
    <dt className="w-28 shrink-0 wrap-anywhere text-muted">{label}</dt>
    <dd className="min-w-0 flex-1 basis-40 wrap-anywhere">{children}</dd>
  </div>
)

function Settings({ label, settings }: { label: string; settings: readonly Setting[] }) {
  return (
    <table aria-label={label} className="w-full">
      <thead className="sr-only">
        <tr>
          <th scope="col">Setting</th>
          <th scope="col">Value</th>
          <th scope="col">Chosen by</th>
        </tr>
      </thead>
      <tbody>
        {settings.map(({ name, value, source, description }) => (
          <tr key={name} className="align-baseline">
            <th scope="row" className="py-1 pr-3 text-left font-normal text-muted sm:whitespace-nowrap">
              {settingLabel(name)}{' '}
              {description && (
                <Help word={settingLabel(name)}>
                  <Message text={description} />
                </Help>
              )}
            </th>
            <td className="w-full py-1 pr-3 wrap-anywhere">{valueText(value)}</td>
            <td className="py-1 text-right">
              <Badge tone={sources[source].tone}>{sources[source].text}</Badge>
            </td>
          </tr>
        ))}
      </tbody>
    </table>
  )
}

function valueText(value: unknown): string {
  if (value === null) return 'None'
  if (typeof value === 'number') return Number.isInteger(value) ? formatCount(value) : formatNumber(value, 6)
  if (typeof value === 'string') return value
  if (!Array.isArray(value)) return JSON.stringify(value)
  if (value.length === 0) return 'None'
  return value.every((each) => typeof each === 'string') ? value.join(', ') : `${value.length} entries`
}
