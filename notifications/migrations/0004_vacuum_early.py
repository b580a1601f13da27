from django.db import migrations

from casualmeet.vacuuming import vacuum_early


class Migration(migrations.Migration):

    dependencies = [
        ('notifications', '0003_operations'),
    ]

    operations = [
        vacuum_early('notifications_delivery', 'notifications_deliveryattempt'),
    ]
