import { useMutation, useQuery } from '@tanstack/react-query'
import { useState } from 'react'
import type { Deployment } from '../../../sdk/index.ts'
import { tunery } from '../../lib/api.ts'
import { useDeployable } from '../../lib/deployable.ts'
import { fieldError } from '../../lib/errors.ts'
import { type Choice, Combobox } from '../../ui/choices.tsx'
import { FormError } from '../../ui/feedback.tsx'
import { Field, Form, FormButtons, NumberInput } from '../../ui/field.tsx'
import { Dialog } from '../../ui/popups.tsx'
import { toast } from '../../ui/toast.tsx'
import { Checkbox, Switch } from '../../ui/toggles.tsx'

/** Another model for a name: at once, or once a gate passes. */
export function SwitchModel({
  deployment,
  onClose,
  refresh,
}: {
  deployment: Deployment
  onClose: () => void
  refresh: () => Promise<unknown>
}) {
  const [model, setModel] = useState<string | null>(null)
  const [gated, setGated] = useState(false)
  const [evaluation, setEvaluation] = useState<string | null>(null)
  const [minScore, setMinScore] = useState<number | null>(null)
  const [notWorse, setNotWorse] = useState(true)
  const models = useDeployable()
  const evaluations = useQuery({
    queryKey: ['evaluations', 'list', { limit: 100 }],
    queryFn: ({ signal }) => tunery.evaluations.list({ limit: 100 }, { signal }),
    select: ({ items }) =>
      items
        .filter((item) => item.model !== null)
        .map(({ id, name, rows }): Choice => ({ value: id, label: name, note: `${rows} rows` })),
  })
  const change = useMutation({
    mutationFn: () =>
      tunery.deployments.switch(deployment.name, {
        model: model!,
        ...(gated && {
          gate: {
            evaluation: evaluation!,
            not_worse_than_current: notWorse,
            ...(minScore !== null && { min_score: minScore }),
          },
        }),
      }),
    onSuccess: async ({ pending }) => {
      await refresh()
      toast.good(pending ? 'Evaluation started' : 'Model switched')
      onClose()
    },
  })
  const fields = ['model', 'gate.evaluation']
  return (
    <Dialog
      open
      onOpenChange={(open) => !open && onClose()}
      title={`Switch ${deployment.name}`}
      description="Requests in progress finish on the current model. You can roll back with one click."
    >
      <Form onSubmit={() => change.mutate()}>
        <Field label="Model" error={fieldError(change.error, 'model')}>
          <Combobox
            value={model}
            onChange={setModel}
            choices={models.data?.filter(({ value }) => value !== deployment.model) ?? []}
            placeholder="Choose a model"
          />
        </Field>
        <Switch
          label="Only if it passes an evaluation"
          help="The new model first answers the rows of an evaluation, next to the current one."
          checked={gated}
          onChange={setGated}
        />
        {gated && (
          <>
            <Field
              label="Evaluation"
              help="Same rows, same graders."
              error={fieldError(change.error, 'gate.evaluation')}
            >
              <Combobox
                value={evaluation}
                onChange={setEvaluation}
                choices={evaluations.data ?? []}
                placeholder="Choose an evaluation"
                empty="No evaluations yet"
              />
            </Field>
            <Field label="Minimum score" optional>
              <NumberInput value={minScore} onChange={setMinScore} min={0} max={1} step={0.05} />
            </Field>
            <Checkbox
              label="Not worse than the current model"
              help="Rejects a model that is significantly worse."
              checked={notWorse}
              onChange={setNotWorse}
            />
          </>
        )}
        <FormError error={change.error} fields={fields} />
        <FormButtons
          onCancel={onClose}
          busy={change.isPending}
          missing={!model ? 'Choose a model.' : gated && !evaluation && 'Choose an evaluation.'}
        >
          {gated ? 'Start evaluation' : 'Switch'}
        </FormButtons>
      </Form>
    </Dialog>
  )
}
