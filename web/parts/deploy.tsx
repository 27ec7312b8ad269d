import { useMutation, useQuery, useQueryClient } from '@tanstack/react-query'
import { useNavigate } from '@tanstack/react-router'
import { useState } from 'react'
import { tunery } from '../lib/api.ts'
import { asDeploymentName } from '../lib/deployable.ts'
import { fieldError } from '../lib/errors.ts'
import { useModelNames } from '../lib/names.ts'
import { Select } from '../ui/choices.tsx'
import { FormError } from '../ui/feedback.tsx'
import { Field, Form, FormButtons, Input } from '../ui/field.tsx'
import { Dialog } from '../ui/popups.tsx'
import { toast } from '../ui/toast.tsx'

const newName = ' new'

/** Gives a model a name, or lets a name that is there serve it. */
export function DeployDialog({
  model,
  suggestion,
  onClose,
}: {
  model: string
  suggestion: string
  onClose: () => void
}) {
  const [target, setTarget] = useState<string>(newName)
  const [name, setName] = useState(() => asDeploymentName(suggestion))
  const navigate = useNavigate()
  const client = useQueryClient()
  const nameOf = useModelNames()
  const deployments = useQuery({
    queryKey: ['deployments', 'list', { limit: 100 }],
    queryFn: ({ signal }) => tunery.deployments.list({ limit: 100 }, { signal }),
  })
  const others = (deployments.data?.items ?? []).filter((item) => item.model !== model && item.status !== 'stopped')
  const deploy = useMutation({
    mutationFn: () =>
      target === newName ? tunery.deployments.create({ model, name }) : tunery.deployments.switch(target, { model }),
    onSuccess: async (deployment) => {
      await client.invalidateQueries({ queryKey: ['deployments'] })
      toast.good(`${deployment.name} is deployed`)
      onClose()
      await navigate({ to: '/deployments/$name', params: { name: deployment.name } })
    },
  })
  return (
    <Dialog
      open
      onOpenChange={(open) => !open && onClose()}
      title="Deploy model"
      description="Any OpenAI client can call it by this name."
    >
      <Form onSubmit={() => deploy.mutate()}>
        {others.length > 0 && (
          <Field
            label="Deployment"
            help={
              target === newName ? undefined : 'Requests in progress finish on the current model. You can roll back.'
            }
          >
            <Select
              value={target}
              onChange={setTarget}
              choices={[
                { value: newName, label: 'New deployment' },
                ...others.map((other) => ({
                  value: other.name,
                  label: other.name,
                  note: `serves ${nameOf(other.model)} now`,
                })),
              ]}
            />
          </Field>
        )}
        {target === newName && (
          <Field
            label="Name"
            help="Your code sends it as the model. Lowercase letters, digits, dots, underscores and hyphens."
            error={fieldError(deploy.error, 'name')}
          >
            <Input value={name} onChange={(event) => setName(event.target.value.toLowerCase())} maxLength={64} />
          </Field>
        )}
        <FormError error={deploy.error} fields={target === newName ? ['name'] : []} />
        <FormButtons
          onCancel={onClose}
          busy={deploy.isPending}
          missing={target === newName && !name.trim() && 'Enter a name.'}
        >
          {target === newName ? 'Deploy' : 'Switch'}
        </FormButtons>
      </Form>
    </Dialog>
  )
}
