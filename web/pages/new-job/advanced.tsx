import type { Dataset, JobEstimate } from '../../../sdk/index.ts'
import { datasetChoice } from '../../lib/datasets.ts'
import { Combobox } from '../../ui/choices.tsx'
import { Disclosure } from '../../ui/disclosure.tsx'
import { advancedFor, changedIn, type Draft } from './draft.ts'
import { type GroupName, groupNames, type HyperparameterInfo, type Objective } from './fields.ts'
import { Setting } from './setting.tsx'

const titles = (objective: Objective): Record<GroupName, { title: string; text: string }> => ({
  training_config: { title: 'Training', text: 'Epochs, learning rate and row length.' },
  lora_config: { title: 'Adapter', text: 'The small matrices that LoRA trains. The base stays unchanged.' },
  evaluation_config: { title: 'Evaluation', text: 'Held-out rows, early stopping and sample answers during training.' },
  method_options:
    objective === 'reinforcement'
      ? { title: 'Reinforcement', text: 'How answers are sampled, and how the model learns from their scores.' }
      : { title: 'Preferences', text: 'How strongly chosen answers are preferred.' },
})
const order: readonly GroupName[] = ['training_config', 'lora_config', 'evaluation_config', 'method_options']

interface AdvancedProps {
  draft: Draft
  objective: Objective
  change: (changes: Partial<Draft>) => void
  datasets: readonly Dataset[]
  /** What is wrong, by the path in the request. */
  errorOf: (path: string) => string | undefined
  estimate?: JobEstimate | undefined
  /** The base's. */
  context_length?: number | undefined
}

export function Advanced(props: AdvancedProps) {
  const { draft, objective, errorOf } = props
  return (
    <div className="grid gap-1">
      {order.map((group) => {
        const entries = advancedFor(group, draft.method, objective)
        if (entries.length === 0) return null
        const changed = changedIn(draft, group, objective)
        const wrong = entries.some(({ name }) => errorOf(`config.${group}.${name}`)) || errorOf(`config.${group}`)
        return (
          <div key={group} className="border-t border-line py-3 first:border-t-0 first:pt-0 last:pb-0">
            <Disclosure
              open={changed > 0 || Boolean(wrong)}
              summary={
                <span className="inline-flex flex-wrap items-baseline gap-x-2">
                  {titles(objective)[group].title}
                  <span className="text-sm font-normal text-muted">
                    {changed > 0 ? `${changed} of ${entries.length} changed` : `${entries.length} settings`}
                  </span>
                </span>
              }
            >
              <Group {...props} group={group} />
            </Disclosure>
          </div>
        )
      })}
    </div>
  )
}

/** Rows cannot be longer than the context of the base. */
const boundedInfo = (info: HyperparameterInfo, context_length: number | undefined): HyperparameterInfo =>
  info.name === 'max_length' && context_length !== undefined
    ? { ...info, maximum: Math.min(info.maximum ?? context_length, context_length) }
    : info

function Group(props: AdvancedProps & { group: GroupName }) {
  const { draft, objective, change, datasets, errorOf, estimate, group, context_length } = props
  const values = draft.values[group]
  const resolved = estimate?.resolved_config[group] as Record<string, { value: unknown }> | null | undefined
  const set = (name: string, value: unknown) =>
    change({ values: { ...draft.values, [group]: { ...values, [name]: value } } })
  return (
    <div className="grid gap-4">
      <p className="text-muted">{titles(objective)[group].text}</p>
      <div className="grid items-start gap-x-6 gap-y-5 sm:grid-cols-2">
        {advancedFor(group, draft.method, objective).map((info) => (
          <div key={info.name} className={info.type === 'list' ? 'sm:col-span-2' : undefined}>
            <Setting
              info={boundedInfo(info, context_length)}
              value={values[info.name]}
              onChange={(value) => set(info.name, value)}
              error={errorOf(`config.${group}.${info.name}`)}
              inForce={values[info.name] === undefined ? resolved?.[info.name]?.value : undefined}
              control={
                info.name === 'validation_dataset_id' && (
                  <Combobox
                    value={(values[info.name] as string | undefined) ?? null}
                    onChange={(value) => set(info.name, value ?? undefined)}
                    clearable
                    placeholder="None"
                    empty="No matching datasets"
                    choices={datasets.map((dataset) => datasetChoice(dataset, datasets))}
                  />
                )
              }
            />
          </div>
        ))}
      </div>
    </div>
  )
}

/** How many settings are not the default, over all groups. */
export const changedCount = (draft: Draft, objective: Objective) =>
  groupNames.reduce((sum, group) => sum + changedIn(draft, group, objective), 0)
