import { SkeletonLines } from '../../ui/feedback.tsx'
import { Card, Page } from '../../ui/layout.tsx'

export default function InvitationPage() {
  return (
    <Page title="Invitation">
      <Card>
        <SkeletonLines lines={5} />
      </Card>
    </Page>
  )
}
