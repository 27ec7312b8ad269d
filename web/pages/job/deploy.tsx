import { useMutation, useQuery, useQueryClient } from '@tanstack/react-query'
import { useNavigate } from '@tanstack/react-router'
import { useState } from 'react'
import { tunery } from '../../lib/api.ts'
import { fieldError, formError } from '../../lib/errors.ts'
import { Select } from '../../ui/choices.tsx'
import { Notice } from '../../ui/feedback.tsx'
import { Field, Form, FormButtons, Input } from '../../ui/field.tsx'
import { Dialog } from '../../ui/popups.tsx'
import { toast } from '../../ui/toast.tsx'
import { Message } from '../../ui/values.tsx'

const newName = ' new'

/** A name that programs can send, made of another. */
const asDeploymentName = (text: string) =>
  text
    .toLowerCase()
    .replace(/[^a-z0-9._-]+/g, '-')
    .replace(/^[-._]+|(?<![-._])[-._]+$/g, '')
    .slice(0, 40)

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
  const deployments = useQuery({
    queryKey: ['deployments', 'list', { limit: 100 }],
    queryFn: ({ signal }) => tunery.deployments.list({ limit: 100 }, { signal }),
  })
  const others = (deployments.data?.items ?? []).filter((each) => each.model !== model && each.status !== 'stopped')
  const deploy = useMutation({
    mutationFn: () =>
      target === newName ? tunery.deployments.create({ model, name }) : tunery.deployments.switch(target, { model }),
    onSuccess: async (made) => {
      await client.invalidateQueries({ queryKey: ['deployments'] })
      toast.good(`${made.name} serves the model`)
      onClose()
      await navigate({ to: '/deployments/$name', params: { name: made.name } })
    },
  })
  return (
    <Dialog
      open
      onOpenChange={(open) => !open && onClose()}
      title="Deploy the model"
      description="Programs call it by a name, with the protocol of OpenAI."
    >
      <Form onSubmit={() => deploy.mutate()}>
        {others.length > 0 && (
          <Field
            label="Under"
            help={target === newName ? undefined : 'Requests under way finish on the old model. You can roll back.'}
          >
            <Select
              value={target}
              onChange={setTarget}
              choices={[
                { value: newName, label: 'A new name' },
                ...others.map((each) => ({ value: each.name, label: each.name, note: `serves ${each.model} now` })),
              ]}
            />
          </Field>
        )}
        {target === newName && (
          <Field
            label="Name"
            help="What programs send as model: a-z, 0-9, dot, underscore and hyphen."
            error={fieldError(deploy.error, 'name')}
          >
            <Input value={name} onChange={(event) => setName(event.target.value.toLowerCase())} maxLength={64} />
          </Field>
        )}
        {formError(deploy.error, target === newName ? ['name'] : []) && (
          <Notice tone="bad">
            <Message text={formError(deploy.error, target === newName ? ['name'] : [])!} />
          </Notice>
        )}
        <FormButtons onCancel={onClose} busy={deploy.isPending} disabled={target === newName && !name.trim()}>
          {target === newName ? 'Deploy' : 'Switch'}
        </FormButtons>
      </Form>
    </Dialog>
  )
}
