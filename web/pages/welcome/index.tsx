import { useMutation } from '@tanstack/react-query'
import { useNavigate } from '@tanstack/react-router'
import { useState } from 'react'
import { tunery } from '../../lib/api.ts'
import { fieldError } from '../../lib/errors.ts'
import { type Session, useSessionQuery } from '../../lib/session.ts'
import { addPasskey, deviceName, setPassword } from '../../lib/sign-in.ts'
import { Centered, Or, PasskeyButton } from '../../ui/brand.tsx'
import { TextLink } from '../../ui/button.tsx'
import { ErrorState, FormError, SkeletonLines } from '../../ui/feedback.tsx'
import { Field, Form, Input, SubmitButton } from '../../ui/field.tsx'
import { missingIn, NewPassword } from '../../ui/new-password.tsx'
import { Redirect } from '../../ui/redirect.tsx'

/** After the first sign-in by a link, which works once: sets up the way in for the next time. */
export default function WelcomePage() {
  const session = useSessionQuery()
  if (session.data === null) return <Redirect to="/sign-in" />
  return (
    <Centered
      title="Welcome to Tunery"
      description="Your sign-in link works once. Set up how you sign in from now on."
      footer={<TextLink to="/">Skip for now</TextLink>}
    >
      {session.data ? (
        <Ways session={session.data} />
      ) : session.isError ? (
        <ErrorState error={session.error} retry={() => void session.refetch()} />
      ) : (
        <SkeletonLines lines={4} />
      )}
    </Centered>
  )
}

function Ways({ session }: { session: Session }) {
  const navigate = useNavigate()
  const enter = () => navigate({ to: '/', replace: true })
  const [name, setName] = useState(session.profile.name)
  const [email, setEmail] = useState(session.profile.email ?? '')
  const [password, change] = useState('')
  const saveName = async () => {
    const changes = { ...(name !== session.profile.name && { name }), ...(email && { email }) }
    if (Object.keys(changes).length > 0) await tunery.user.update(changes)
  }
  const byPassword = useMutation({
    mutationFn: async () => {
      await saveName()
      await setPassword(password, email)
    },
    onSuccess: enter,
  })
  const byPasskey = useMutation({
    mutationFn: async () => {
      await saveName()
      await addPasskey(deviceName())
    },
    onSuccess: enter,
  })
  const error = byPassword.error ?? byPasskey.error
  return (
    <Form onSubmit={() => byPassword.mutate()}>
      <Field label="Name" error={fieldError(error, 'name')}>
        <Input name="name" autoComplete="name" value={name} onChange={(event) => setName(event.target.value)} />
      </Field>
      <Field label="Email" help="You sign in with it. We never send email." error={fieldError(error, 'email')}>
        <Input
          type="email"
          name="email"
          autoComplete="username"
          required
          value={email}
          onChange={(event) => setEmail(event.target.value)}
        />
      </Field>
      <NewPassword value={password} onChange={change} error={fieldError(byPassword.error, 'password')} />
      <FormError error={error} fields={['name', 'email', 'password']} />
      <SubmitButton
        busy={byPassword.isPending}
        missing={email ? missingIn(password) : 'Enter your email and a password.'}
      >
        Set password
      </SubmitButton>
      <Or />
      <PasskeyButton busy={byPasskey.isPending} onClick={() => byPasskey.mutate()}>
        Create a passkey
      </PasskeyButton>
    </Form>
  )
}
